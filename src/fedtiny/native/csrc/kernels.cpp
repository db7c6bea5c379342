// Compiled once for each instruction set, with FEDTINY_ISA naming it. Nothing here may use the
// standard library's templates: the linker keeps one copy of those, and it must run anywhere.
#include "convolution_kernels.h"
#include "norm_kernels.h"
#include "plane_kernels.h"
#include "row_kernels.h"

namespace fedtiny {

#define FEDTINY_NAME_(isa) kernels_##isa
#define FEDTINY_NAME(isa) FEDTINY_NAME_(isa)
#define FEDTINY_TEXT_(isa) #isa
#define FEDTINY_TEXT(isa) FEDTINY_TEXT_(isa)

extern const Kernels FEDTINY_NAME(FEDTINY_ISA);
const Kernels FEDTINY_NAME(FEDTINY_ISA) = {
    FEDTINY_TEXT(FEDTINY_ISA),
    L,
    FILTERS,
    load_rows,
    store_rows,
    accumulate_grad,
    gather,
    gather_dense,
    weight_gradient,
    dense_gradient,
    combine,
    max_pool,
    max_pool_backward,
    mean_pool,
    mean_pool_backward,
    dropout,
    pack,
    multiply,
    add_up,
    upsample,
    upsample_backward,
    image_moments,
    image_normalize,
    image_products,
    image_gradient,
    sum,
};

}  // namespace fedtiny
