/* The kernels, compiled once for each set of instructions: KERNELS is the name of their table. */
#include "core.h"
#include "crops.h"
#include "rows.h"
#include "sums.h"

#define NAME_OF(x) #x
#define NAME(x) NAME_OF(x)

const kernels KERNELS = {.name = NAME(VARIANT),
                         .gather = gather_rows,
                         .small = move_images,
                         .crop = crop_image,
                         .index = index_file,
                         .sums = channel_sums};
