/* A shim between a program and the C library (LD_PRELOAD): counts the operations on files below a folder, in all
   processes together, and at the n-th one lets it fail, cuts it short or kills. It can also write down all changes.

   gcc -O2 -shared -fPIC -o faultfs.so faultfs.c; server.py says what to do, through faultfs_arm.

   The state is a file that all processes map: TSDS_FAULTS_CONTROL. Linux with glibc on a 64-bit machine. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Classes of operations; a sweep counts some of them. */
enum { DATA = 1, CREATE = 2, SYNC = 4, NAME = 8, READ = 16, LOOK = 32, LOCK = 64 };
/* What happens at the n-th: nothing, one error, errors from there on, SIGKILL for all processes or for the one that
   does it, half of a write and then SIGKILL; SHORT lets every write take half of what it is given; SIGNAL sends all
   processes the signal whose number `error` is, and the operation is done; TRACE writes a line into the log for each
   operation that is counted, and none for changes. */
enum { PASS, FAIL_ONCE, FAIL_FROM, KILL_ALL, KILL_ONE, TEAR, SHORT, SIGNAL, TRACE };
/* What an operation is to do. */
enum { GO, FAIL, HALF, HALF_AND_DIE };

#define LENGTH 4096
typedef struct {
  volatile long count, fired;
  long at, clock; /* clock: seconds since the epoch at which CLOCK_REALTIME stands still; 0 leaves it alone */
  volatile int action;
  int error, counted, failing;
  char prefix[LENGTH], log[LENGTH], what[2 * LENGTH];
} Control;
static Control *control;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("TSDS_FAULTS_CONTROL");
  int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0) return;
  void *found = MAP_FAILED;
  if (!syscall(SYS_ftruncate, fd, sizeof(Control)))
    found = (void *)syscall(SYS_mmap, 0, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) control = found;
  syscall(SYS_close, fd);
}

void faultfs_arm(int action, long at, int error, int counted, int failing, const char *prefix, const char *log,
                 long clock) {
  control->action = PASS;
  control->count = control->fired = 0;
  control->what[0] = 0;
  control->at = at, control->error = error, control->counted = counted, control->failing = failing;
  control->clock = clock;
  snprintf(control->prefix, LENGTH, "%s", prefix);
  snprintf(control->log, LENGTH, "%s", log);
  control->action = action;
}
long faultfs_count(void) { return control->count; }
long faultfs_fired(void) { return control->fired; }
const char *faultfs_what(void) { return control->what; }

/* --- which file is it? ------------------------------------------------------------------------------------------- */

static int watching(void) { return control && control->prefix[0]; }
static int inside(const char *path) {
  size_t n = strlen(control->prefix);
  return path && !strncmp(path, control->prefix, n) && (path[n] == '/' || !path[n]);
}
static const char *path_of(int fd, char *buffer) {
  char link[64];
  if (!watching() || fd < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long n = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, LENGTH - 1);
  if (n < 0) return 0;
  buffer[n] = 0;
  return buffer;
}
static const char *path_at(int directory, const char *path, char *buffer) {
  char above[LENGTH];
  if (!watching() || !path || path[0] == '/') return path;
  if (directory != AT_FDCWD) {
    if (!path_of(directory, above)) return path;
  } else if (syscall(SYS_getcwd, above, LENGTH) < 0) return path;
  return snprintf(buffer, LENGTH, "%s/%s", above, path) < LENGTH ? buffer : path;
}

/* --- what happens to it ------------------------------------------------------------------------------------------ */

static void die(int everybody) {
  kill(everybody ? 0 : getpid(), SIGKILL);
  for (;;) pause();
}
static void log_line(const char *line, size_t n, const void *data, size_t length) {
  int error = errno, fd = syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  struct iovec parts[2] = {{(void *)line, n}, {(void *)data, length}};
  if (fd < 0 || syscall(SYS_writev, fd, parts, data ? 2 : 1) < 0) abort();
  syscall(SYS_close, fd);
  errno = error;
}
static int decide(int class, const char *operation, const char *path) {
  if (!watching() || !(class & control->counted) || !inside(path)) return GO;
  long n = __sync_add_and_fetch(&control->count, 1);
  if (control->action == TRACE) {
    char line[2 * LENGTH];
    log_line(line, snprintf(line, sizeof line, "%ld\t%s .%s\n", n, operation, path + strlen(control->prefix)), 0, 0);
    return GO;
  }
  if (control->action == SHORT) {
    if (class != DATA) return GO;
    control->fired++;
    return HALF;
  }
  int now = control->action == FAIL_FROM ? n >= control->at && class & control->failing
                                         : control->action != PASS && n == control->at;
  if (!now) return GO;
  if (!__sync_fetch_and_add(&control->fired, 1))
    snprintf(control->what, sizeof control->what, "%s .%s", operation, path + strlen(control->prefix));
  if (control->action == KILL_ALL || control->action == KILL_ONE) die(control->action == KILL_ALL);
  if (control->action == SIGNAL) {
    kill(0, control->error);
    return GO;
  }
  if (control->action == TEAR) {
    if (class == DATA) return HALF_AND_DIE;
    die(1);
  }
  errno = control->error;
  return FAIL;
}
/* A line, and the data that was written: "operation path other offset length\n" with tabs, in one append. */
static void note(const char *operation, const char *path, const char *other, long offset, const void *data,
                 long length) {
  if (!watching() || !control->log[0] || !inside(path) || control->action == TRACE) return;
  char line[2 * LENGTH + 100];
  const char *format = "%s\t%s\t%s\t%ld\t%ld\n";
  log_line(line, snprintf(line, sizeof line, format, operation, path, other ? other : "", offset, length), data, length);
}
/* The same for data that the kernel copied: it is read from the file. */
static void note_copied(int fd, const char *path, long offset, long length) {
  char link[64], *data = malloc(length);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int file = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
  if (!data || file < 0 || syscall(SYS_pread64, file, data, length, offset) != length) abort();
  note("write", path, 0, offset, data, length);
  syscall(SYS_close, file);
  free(data);
}

#define REAL(type, name, ...)             \
  static type (*real)(__VA_ARGS__);       \
  if (!real) real = dlsym(RTLD_NEXT, #name)
#define PERHAPS_FAIL(class, path, value) \
  if (decide(class, __func__, path) != GO) return value
#define CHANGE(call, ...)               \
  int result = call;                    \
  if (!result) note(__VA_ARGS__);       \
  return result

/* --- opening ----------------------------------------------------------------------------------------------------- */

#define MODE(flags)                         \
  mode_t mode = 0;                          \
  if (flags & (O_CREAT | O_TMPFILE)) {      \
    va_list rest;                           \
    va_start(rest, flags);                  \
    mode = va_arg(rest, int);               \
    va_end(rest);                           \
  }
#define OPENED(call, where)                                                        \
  char buffer[LENGTH];                                                             \
  const char *full = where;                                                        \
  int writes = flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC);                    \
  PERHAPS_FAIL(writes ? CREATE : READ, full, -1);                                  \
  int fd = call;                                                                   \
  if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) note(flags & O_TRUNC ? "create" : "touch", full, 0, 0, 0, 0); \
  return fd;
#define OPEN(name)                                     \
  int name(const char *path, int flags, ...) {         \
    REAL(int, name, const char *, int, ...);           \
    MODE(flags)                                        \
    OPENED(real(path, flags, mode), path_at(AT_FDCWD, path, buffer)) \
  }
OPEN(open) OPEN(open64)
#define OPENAT(name)                                       \
  int name(int directory, const char *path, int flags, ...) { \
    REAL(int, name, int, const char *, int, ...);          \
    MODE(flags)                                            \
    OPENED(real(directory, path, flags, mode), path_at(directory, path, buffer)) \
  }
OPENAT(openat) OPENAT(openat64)

/* --- data -------------------------------------------------------------------------------------------------------- */

static long position(int fd) { return syscall(SYS_lseek, fd, 0L, SEEK_CUR); }
static size_t half(int verdict, size_t n) { return verdict != GO && n > 1 ? n / 2 : n; }

ssize_t write(int fd, const void *data, size_t n) {
  REAL(ssize_t, write, int, const void *, size_t);
  char buffer[LENGTH];
  const char *path = path_of(fd, buffer);
  int verdict = decide(DATA, "write", path);
  if (verdict == FAIL) return -1;
  ssize_t done = real(fd, data, half(verdict, n));
  if (verdict == HALF_AND_DIE) die(1);
  if (done > 0 && path) note("write", path, 0, position(fd) - done, data, done);
  return done;
}
#define PWRITE(name)                                                   \
  ssize_t name(int fd, const void *data, size_t n, off_t offset) {     \
    REAL(ssize_t, name, int, const void *, size_t, off_t);             \
    char buffer[LENGTH];                                               \
    const char *path = path_of(fd, buffer);                            \
    int verdict = decide(DATA, "pwrite", path);                        \
    if (verdict == FAIL) return -1;                                    \
    ssize_t done = real(fd, data, half(verdict, n), offset);           \
    if (verdict == HALF_AND_DIE) die(1);                               \
    if (done > 0) note("write", path, 0, offset, data, done);          \
    return done;                                                       \
  }
PWRITE(pwrite) PWRITE(pwrite64)

/* Writes of several pieces: a short one takes the first piece alone. */
#define PIECES(call, offset)                                           \
    char buffer[LENGTH];                                               \
    const char *path = path_of(fd, buffer);                            \
    int verdict = decide(DATA, __func__, path);                        \
    if (verdict == FAIL) return -1;                                    \
    if (verdict != GO) n = 1;                                          \
    ssize_t done = call;                                               \
    if (verdict == HALF_AND_DIE) die(1);                               \
    if (done > 0 && path && inside(path) && control->log[0]) note_copied(fd, path, offset, done); \
    return done;
ssize_t writev(int fd, const struct iovec *pieces, int n) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  PIECES(real(fd, pieces, n), position(fd) - done)
}
#define PWRITEV(name)                                                           \
  ssize_t name(int fd, const struct iovec *pieces, int n, off_t at, int flags) { \
    REAL(ssize_t, name, int, const struct iovec *, int, off_t, int);            \
    PIECES(real(fd, pieces, n, at, flags), at)                                  \
  }
PWRITEV(pwritev2) PWRITEV(pwritev64v2)

/* Data that the kernel copies from file to file. */
#define COPIED(call)                                                   \
    char buffer[LENGTH];                                               \
    const char *path = path_of(to, buffer);                            \
    int verdict = decide(DATA, __func__, path);                        \
    if (verdict == FAIL) return -1;                                    \
    n = half(verdict, n);                                              \
    ssize_t done = call;                                               \
    if (verdict == HALF_AND_DIE) die(1);
#define SENDFILE(name)                                                 \
  ssize_t name(int to, int from, off_t *offset, size_t n) {            \
    REAL(ssize_t, name, int, int, off_t *, size_t);                    \
    COPIED(real(to, from, offset, n))                                  \
    if (done > 0 && path && inside(path) && control->log[0]) note_copied(to, path, position(to) - done, done); \
    return done;                                                       \
  }
SENDFILE(sendfile) SENDFILE(sendfile64)
ssize_t copy_file_range(int from, off_t *start, int to, off_t *target, size_t n, unsigned flags) {
  REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned);
  COPIED(real(from, start, to, target, n, flags))
  if (done > 0 && path && inside(path) && control->log[0])
    note_copied(to, path, (target ? *target : position(to)) - done, done);
  return done;
}

#define TRUNCATE(name)                                     \
  int name(int fd, off_t size) {                           \
    REAL(int, name, int, off_t);                           \
    char buffer[LENGTH];                                   \
    const char *path = path_of(fd, buffer);                \
    PERHAPS_FAIL(CREATE, path, -1);                        \
    CHANGE(real(fd, size), "truncate", path, 0, size, 0, 0); \
  }
TRUNCATE(ftruncate) TRUNCATE(ftruncate64)
#define TRUNCATE_PATH(name)                                \
  int name(const char *given, off_t size) {                \
    REAL(int, name, const char *, off_t);                  \
    char buffer[LENGTH];                                   \
    const char *path = path_at(AT_FDCWD, given, buffer);   \
    PERHAPS_FAIL(CREATE, path, -1);                        \
    CHANGE(real(given, size), "truncate", path, 0, size, 0, 0); \
  }
TRUNCATE_PATH(truncate) TRUNCATE_PATH(truncate64)
#define ALLOCATE(name)                                     \
  int name(int fd, off_t offset, off_t length) {           \
    REAL(int, name, int, off_t, off_t);                    \
    char buffer[LENGTH];                                   \
    const char *path = path_of(fd, buffer);                \
    PERHAPS_FAIL(CREATE, path, errno);                     \
    CHANGE(real(fd, offset, length), "extend", path, 0, offset + length, 0, 0); \
  }
ALLOCATE(posix_fallocate) ALLOCATE(posix_fallocate64)

#define SYNCED(name)                                       \
  int name(int fd) {                                       \
    REAL(int, name, int);                                  \
    char buffer[LENGTH];                                   \
    const char *path = path_of(fd, buffer);                \
    PERHAPS_FAIL(SYNC, path, -1);                          \
    CHANGE(real(fd), "sync", path, 0, 0, 0, 0);            \
  }
SYNCED(fsync) SYNCED(fdatasync)
/* It may fail, and promises nothing: it syncs no metadata. */
int sync_file_range(int fd, off_t offset, off_t n, unsigned flags) {
  REAL(int, sync_file_range, int, off_t, off_t, unsigned);
  char buffer[LENGTH];
  PERHAPS_FAIL(SYNC, path_of(fd, buffer), -1);
  return real(fd, offset, n, flags);
}

/* --- names ------------------------------------------------------------------------------------------------------- */

#define HERE(path) path_at(AT_FDCWD, path, buffer)
#define THERE(path) path_at(AT_FDCWD, path, other)
#define BUFFERS char buffer[LENGTH], other[LENGTH]; (void)other

int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME, HERE(from), -1);
  CHANGE(real(from, to), "rename", HERE(from), THERE(to), 0, 0, 0);
}
int renameat(int d, const char *from, int e, const char *to) {
  REAL(int, renameat, int, const char *, int, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME, path_at(d, from, buffer), -1);
  CHANGE(real(d, from, e, to), "rename", path_at(d, from, buffer), path_at(e, to, other), 0, 0, 0);
}
int renameat2(int d, const char *from, int e, const char *to, unsigned flags) {
  REAL(int, renameat2, int, const char *, int, const char *, unsigned);
  BUFFERS;
  PERHAPS_FAIL(NAME, path_at(d, from, buffer), -1);
  CHANGE(real(d, from, e, to, flags), flags & RENAME_EXCHANGE ? "exchange" : "rename", path_at(d, from, buffer),
         path_at(e, to, other), 0, 0, 0);
}
int link(const char *from, const char *to) {
  REAL(int, link, const char *, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, HERE(to), -1);
  CHANGE(real(from, to), "link", HERE(from), THERE(to), 0, 0, 0);
}
int linkat(int d, const char *from, int e, const char *to, int flags) {
  REAL(int, linkat, int, const char *, int, const char *, int);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, path_at(e, to, other), -1);
  CHANGE(real(d, from, e, to, flags), "link", path_at(d, from, buffer), path_at(e, to, other), 0, 0, 0);
}
int symlink(const char *target, const char *path) {
  REAL(int, symlink, const char *, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, HERE(path), -1);
  CHANGE(real(target, path), "symlink", HERE(path), 0, 0, 0, 0);
}
int symlinkat(const char *target, int d, const char *path) {
  REAL(int, symlinkat, const char *, int, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, path_at(d, path, buffer), -1);
  CHANGE(real(target, d, path), "symlink", path_at(d, path, buffer), 0, 0, 0, 0);
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, mkdir, const char *, mode_t);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, HERE(path), -1);
  CHANGE(real(path, mode), "mkdir", HERE(path), 0, 0, 0, 0);
}
int mkdirat(int d, const char *path, mode_t mode) {
  REAL(int, mkdirat, int, const char *, mode_t);
  BUFFERS;
  PERHAPS_FAIL(NAME | CREATE, path_at(d, path, buffer), -1);
  CHANGE(real(d, path, mode), "mkdir", path_at(d, path, buffer), 0, 0, 0, 0);
}
int rmdir(const char *path) {
  REAL(int, rmdir, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME, HERE(path), -1);
  CHANGE(real(path), "rmdir", HERE(path), 0, 0, 0, 0);
}
int unlink(const char *path) {
  REAL(int, unlink, const char *);
  BUFFERS;
  PERHAPS_FAIL(NAME, HERE(path), -1);
  CHANGE(real(path), "unlink", HERE(path), 0, 0, 0, 0);
}
int unlinkat(int d, const char *path, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  BUFFERS;
  PERHAPS_FAIL(NAME, path_at(d, path, buffer), -1);
  CHANGE(real(d, path, flags), flags & AT_REMOVEDIR ? "rmdir" : "unlink", path_at(d, path, buffer), 0, 0, 0, 0);
}
int utimensat(int d, const char *path, const struct timespec times[2], int flags) {
  REAL(int, utimensat, int, const char *, const struct timespec *, int);
  BUFFERS;
  PERHAPS_FAIL(NAME, path_at(d, path, buffer), -1);
  return real(d, path, times, flags);
}
int chmod(const char *path, mode_t mode) {
  REAL(int, chmod, const char *, mode_t);
  BUFFERS;
  PERHAPS_FAIL(NAME, HERE(path), -1);
  return real(path, mode);
}
int fchmod(int fd, mode_t mode) {
  REAL(int, fchmod, int, mode_t);
  BUFFERS;
  PERHAPS_FAIL(NAME, path_of(fd, buffer), -1);
  return real(fd, mode);
}

/* --- reading, looking, locking ----------------------------------------------------------------------------------- */

ssize_t read(int fd, void *data, size_t n) {
  REAL(ssize_t, read, int, void *, size_t);
  char buffer[LENGTH];
  PERHAPS_FAIL(READ, path_of(fd, buffer), -1);
  return real(fd, data, n);
}
#define PREAD(name)                                              \
  ssize_t name(int fd, void *data, size_t n, off_t offset) {     \
    REAL(ssize_t, name, int, void *, size_t, off_t);             \
    char buffer[LENGTH];                                         \
    PERHAPS_FAIL(READ, path_of(fd, buffer), -1);                 \
    return real(fd, data, n, offset);                            \
  }
PREAD(pread) PREAD(pread64)
#define MAP(name)                                                                      \
  void *name(void *at, size_t n, int protection, int flags, int fd, off_t offset) {    \
    REAL(void *, name, void *, size_t, int, int, int, off_t);                          \
    char buffer[LENGTH];                                                               \
    PERHAPS_FAIL(READ, path_of(fd, buffer), MAP_FAILED);                               \
    return real(at, n, protection, flags, fd, offset);                                 \
  }
MAP(mmap) MAP(mmap64)
#define STAT(name, type)                                         \
  int name(const char *path, struct type *found) {               \
    REAL(int, name, const char *, struct type *);                \
    BUFFERS;                                                     \
    PERHAPS_FAIL(LOOK, HERE(path), -1);                          \
    return real(path, found);                                    \
  }
STAT(stat, stat) STAT(lstat, stat) STAT(stat64, stat64) STAT(lstat64, stat64) STAT(statvfs64, statvfs64)
#define FSTAT(name, type)                                        \
  int name(int fd, struct type *found) {                         \
    REAL(int, name, int, struct type *);                         \
    char buffer[LENGTH];                                         \
    PERHAPS_FAIL(LOOK, path_of(fd, buffer), -1);                 \
    return real(fd, found);                                      \
  }
FSTAT(fstat, stat) FSTAT(fstat64, stat64) FSTAT(fstatvfs64, statvfs64)
#define FSTATAT(name, type)                                      \
  int name(int d, const char *path, struct type *found, int flags) { \
    REAL(int, name, int, const char *, struct type *, int);      \
    char buffer[LENGTH];                                         \
    PERHAPS_FAIL(LOOK, path_at(d, path, buffer), -1);            \
    return real(d, path, found, flags);                          \
  }
FSTATAT(fstatat, stat) FSTATAT(fstatat64, stat64)
DIR *opendir(const char *path) {
  REAL(DIR *, opendir, const char *);
  BUFFERS;
  PERHAPS_FAIL(LOOK, HERE(path), 0);
  return real(path);
}
DIR *fdopendir(int fd) {
  REAL(DIR *, fdopendir, int);
  char buffer[LENGTH];
  PERHAPS_FAIL(LOOK, path_of(fd, buffer), 0);
  return real(fd);
}
struct dirent64 *readdir64(DIR *directory) {
  REAL(struct dirent64 *, readdir64, DIR *);
  char buffer[LENGTH];
  PERHAPS_FAIL(LOOK, path_of(dirfd(directory), buffer), 0);
  return real(directory);
}
int flock(int fd, int operation) {
  REAL(int, flock, int, int);
  char buffer[LENGTH];
  PERHAPS_FAIL(LOCK, path_of(fd, buffer), -1);
  return real(fd, operation);
}

/* With a clock that stands still, two conversions of one source have the same bytes. */
int clock_gettime(clockid_t which, struct timespec *now) {
  REAL(int, clock_gettime, clockid_t, struct timespec *);
  if (which != CLOCK_REALTIME || !control || !control->clock) return real(which, now);
  now->tv_sec = control->clock;
  now->tv_nsec = 0;
  return 0;
}
