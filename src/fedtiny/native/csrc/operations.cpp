#include "operations.h"

namespace fedtiny {
namespace {

const Operation* const OPERATIONS[] = {
    &operations::input,      &operations::convolution, &operations::linear,
    &operations::batch_norm, &operations::relu,        &operations::add,
    &operations::max_pool,   &operations::mean_pool,   &operations::adaptive_pool,
    &operations::flatten,    &operations::dropout,
};
constexpr int KINDS = sizeof OPERATIONS / sizeof OPERATIONS[0];
static_assert(KINDS == FEDTINY_DROPOUT + 1, "one operation for each fedtiny_kind");

}  // namespace

bool is_known(const Node& node) { return node.kind >= 0 && node.kind < KINDS; }

const Operation& operation_of(const Node& node) { return *OPERATIONS[node.kind]; }

}  // namespace fedtiny
