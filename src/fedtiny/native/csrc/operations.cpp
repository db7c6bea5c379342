#include "operations.h"

namespace fedtiny {
namespace {

using namespace operations;

const Operation* const OPERATIONS[] = {
    &input,     &convolution,   &linear,   &batch_norm, &relu,         &add,        &max_pool,
    &mean_pool, &adaptive_pool, &flatten,  &dropout,    nullptr,       &group_norm, &layer_norm,
    &relu6,     &leaky_relu,    &silu,     &hard_swish, &hard_sigmoid, &sigmoid,    &tanh,
    &gelu,      nullptr,        &multiply, &concat,     &reshape,      &permute,    &upsample,
    nullptr,    nullptr,        &slice,
};
constexpr int KINDS = sizeof OPERATIONS / sizeof OPERATIONS[0];
static_assert(KINDS == FEDTINY_SLICE + 1, "one operation for each fedtiny_kind");

}  // namespace

bool is_known(const Node& node) {
  return node.kind >= 0 && node.kind < KINDS && OPERATIONS[node.kind] != nullptr;
}

const Operation& operation_of(const Node& node) { return *OPERATIONS[node.kind]; }

}  // namespace fedtiny
