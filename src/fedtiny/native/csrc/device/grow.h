// Growing, dropping and drawing weights (sparse/adjust.py, sparse/positions.py).
#pragma once
#include "engine.h"

namespace fedtiny::device {

// Swap up to so many weights in each layer: the largest gradients for the smallest weights.
Theta grow_and_drop(const Theta& theta, const std::vector<Gradient>& gradients,
                    const std::vector<LayerCount>& counts, const ParamSpec& spec);

// What the loss gains if each weight is dropped, to second order.
std::vector<float> drop_gains(const float* weights, const std::vector<float>& gradients,
                              const std::vector<float>& scaled);

// So many pruned positions of each layer, the same on every device; their values are to be filled.
std::vector<Gradient> random_pruned(const Mask& mask, const std::vector<LayerCount>& counts,
                                    std::int64_t seed, std::int64_t round, const ParamSpec& spec);

}  // namespace fedtiny::device
