/* ---- Strict JSON (4) ---- */

typedef struct Json {
    enum { NOTHING, TRUE, FALSE, INTEGER, FLOAT, TEXT, LIST, OBJECT } kind;
    const char *name, *text;     /* in UTF-8; a text in a list has itself as its name */
    u64 name_size, size, count;  /* the count of items */
    double number;
    struct Json **items, *next;  /* an object's items are sorted by their names */
} Json;
typedef struct {
    const u8 *at, *end;
    Json *node;
    Json **pool;
    char *texts;
} Parser;

/* The length of the first character of strict UTF-8, or 0. */
static u64 utf8(const u8 *p, const u8 *end) {
    u64 n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (n > (u64)(end - p)) return 0;
    for (u64 i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool wrong = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
                 (*p == 0xf4 && p[1] > 0x8f); /* longer than needed, a surrogate, or beyond U+10FFFF */
    return wrong ? 0 : n;
}

static bool is_utf8(Bytes b) {
    for (u64 i = 0, n; i < b.size; i += n)
        if (!(n = utf8(b.data + i, b.data + b.size))) return false;
    return true;
}

static int by_name(const void *a, const void *b) {
    const Json *x = *(Json *const *)a, *y = *(Json *const *)b;
    if (x->name_size != y->name_size) return x->name_size < y->name_size ? -1 : 1;
    return memcmp(x->name, y->name, x->name_size);
}

static bool eat(Parser *p, const char *word) {
    size_t n = strlen(word);
    bool there = (size_t)(p->end - p->at) >= n && !memcmp(p->at, word, n);
    p->at += there ? n : 0;
    return there;
}

static void skip_space(Parser *p) {
    while (p->at < p->end && memchr(" \t\n\r", *p->at, 4)) p->at++;
}

/* The four hexadecimal digits of an escape, or -1. */
static i64 escape(Parser *p) {
    i64 code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const char *digits = "0123456789abcdefABCDEF", *d = p->at < p->end ? memchr(digits, *p->at, 22) : NULL;
        if (!d) return -1;
        code = code * 16 + (d - digits < 16 ? d - digits : d - digits - 6);
    }
    return code;
}

static bool read_text(Parser *p, const char **text, u64 *size) {
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char *t = p->texts;
    *text = t;
    if (!eat(p, "\"")) return false;
    while (p->at < p->end && *p->at != '"') {
        if (*p->at == '\\') {
            const char *simple = ++p->at < p->end ? memchr(names, *p->at, 8) : NULL;
            if (simple) *t++ = meanings[simple - names], p->at++;
            else {
                i64 c = eat(p, "u") ? escape(p) : -1, low = c >> 10 == 0x36 && eat(p, "\\u") ? escape(p) : 0;
                if (c < 0 || c >> 10 == 0x37 || (c >> 10 == 0x36 && low >> 10 != 0x37)) return false;
                if (c >> 10 == 0x36) c = 0x10000 + ((c & 0x3ff) << 10 | (low & 0x3ff));
                int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
                *t++ = (char)(more ? (0xf00 >> more & 0xff) | c >> 6 * more : c);
                while (more--) *t++ = (char)(0x80 | (c >> 6 * more & 0x3f));
            }
        } else {
            u64 n = *p->at < 0x20 ? 0 : utf8(p->at, p->end);
            if (!n) return false;
            memcpy(t, p->at, n), t += n, p->at += n;
        }
    }
    *size = (u64)(t - p->texts);
    *t++ = 0;
    p->texts = t;
    return eat(p, "\"");
}

static bool read_number(Parser *p, Json *v) {
    char word[65] = "";
    const u8 *start = p->at;
#define DIGITS()                                                                                                       \
    do {                                                                                                               \
        if (p->at == p->end || *p->at < '0' || *p->at > '9') return false;                                             \
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;                                              \
    } while (0)
    v->kind = INTEGER;
    eat(p, "-");
    if (!eat(p, "0")) DIGITS();
    if (eat(p, ".")) {
        v->kind = FLOAT;
        DIGITS();
    }
    if (eat(p, "e") || eat(p, "E")) {
        v->kind = FLOAT;
        if (!eat(p, "+")) eat(p, "-");
        DIGITS();
    }
    if (p->at - start > 64) return false;
    memcpy(word, start, (size_t)(p->at - start));
    v->number = strtod(word, NULL);
    return v->kind == FLOAT ? isfinite(v->number) : fabs(v->number) < (double)LIMIT;
}

/* One value, depth levels below the outermost one. Its names and items lie in the pools of the parser. */
static Json *read_value(Parser *p, int depth) {
    Json *v = p->node++, *item, *first = NULL, **link = &first;
    skip_space(p);
    bool object = eat(p, "{");
    if (object || eat(p, "[")) {
        const char *close = object ? "}" : "]";
        v->kind = object ? OBJECT : LIST;
        skip_space(p);
        if (depth > DEPTH) return NULL;
        if (eat(p, close)) return v;
        do {
            const char *name = NULL;
            u64 size = 0;
            skip_space(p);
            if (object && (!read_text(p, &name, &size) || (skip_space(p), !eat(p, ":")))) return NULL;
            if (!(item = read_value(p, depth + 1))) return NULL;
            item->name = object ? name : item->text, item->name_size = object ? size : item->size;
            *link = item, link = &item->next, v->count++;
            skip_space(p);
        } while (eat(p, ","));
        v->items = p->pool, p->pool += v->count;
        for (u64 i = 0; i < v->count; i++, first = first->next) v->items[i] = first;
        return eat(p, close) && (!object || distinct(v->items, v->count, sizeof *v->items, by_name)) ? v : NULL;
    }
    if (eat(p, "true")) return v->kind = TRUE, v;
    if (eat(p, "false")) return v->kind = FALSE, v;
    if (eat(p, "null")) return v;
    if (p->at < p->end && *p->at == '"') return v->kind = TEXT, read_text(p, &v->text, &v->size) ? v : NULL;
    return read_number(p, v) ? v : NULL;
}

/* An object in strict JSON, or NULL. Brackets and commas are counted before any memory is taken. */
static Json *parse(Bytes b, u64 limit) {
    u64 count = 0;
    if (b.size > limit) return NULL;
    for (u64 i = 0, inside = 0; i < b.size; i++) {
        if (b.data[i] == '"') inside = !inside;
        else if (inside) i += b.data[i] == '\\';
        else count += b.data[i] == '[' || b.data[i] == '{' || b.data[i] == ',';
    }
    if (count > VALUES) return NULL;
    Parser p = {b.data, b.data + b.size, take((count + 2) * sizeof(Json)), take((count + 2) * sizeof(Json *)),
                take(b.size + 1)};
    Json *v = read_value(&p, 1);
    skip_space(&p);
    return v && v->kind == OBJECT && p.at == p.end ? v : NULL;
}

/* The member of an object, or NULL; also of no object. */
static Json *get(const Json *object, const char *name) {
    Json key = {.name = name, .name_size = strlen(name)}, *k = &key;
    if (!object || object->kind != OBJECT || !object->count) return NULL;
    Json **found = bsearch(&k, object->items, object->count, sizeof k, by_name);
    return found ? *found : NULL;
}

static bool is(const Json *v, const char *text) {
    return v && v->kind == TEXT && v->size == strlen(text) && !memcmp(v->text, text, v->size);
}

static bool equal(const Json *a, const Json *b) {
    if (a->kind != b->kind || a->count != b->count || a->number != b->number || a->size != b->size) return false;
    if (a->size && memcmp(a->text, b->text, a->size)) return false;
    for (u64 i = 0; i < a->count; i++)
        if (!equal(a->items[i], b->items[i]) || (a->kind == OBJECT && by_name(&a->items[i], &b->items[i])))
            return false;
    return true;
}

/* The value of an integer (4), or -1 of anything else. */
static i64 integer(const Json *v) { return v && v->kind == INTEGER && v->number >= 0 ? (i64)v->number : -1; }

static bool is_kind(const Json *v, int kind) { return v && (int)v->kind == kind; }
