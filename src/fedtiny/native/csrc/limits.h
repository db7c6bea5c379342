// What native code accepts at most. Python refuses the same, earlier and by the layer's name.
#pragma once
#include "kernels.h"

namespace fedtiny {

constexpr Index MAX_NODES = 100000;
constexpr Index MAX_VALUES = Index{1} << 26;   // of a tensor of one image
constexpr Index MAX_WEIGHTS = Index{1} << 30;  // of a layer
constexpr Index MAX_WINDOW = 4096;             // kernel, stride and padding
constexpr Index MAX_BATCH = Index{1} << 20;
#if defined(FEDTINY_SINGLE_THREAD)
constexpr Index MAX_THREADS = 1;
#else
constexpr Index MAX_THREADS = 1024;
#endif
constexpr Index MAX_BYTES = Index{1} << 44;  // no machine has more memory

}  // namespace fedtiny
