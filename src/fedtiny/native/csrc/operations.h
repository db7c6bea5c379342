// The operations of a network, each in a file of its own.
//
// An operation is a record of what the rest of the code needs to know of it: its name and the
// number of nodes that it reads, its shape rule (which also refuses numbers that make no sense),
// and free functions that run it forward and backward over a pass (run.h). To add one: write its
// file, with its record at the end, and name the record in `operations` here and in the table of
// operations.cpp, at the place of its kind in fedtiny_native.h.
//
// Batch norm, activations, addition and flattening have no functions to run: they are folded into
// views and combinations (program.h). `copy` and `combine` are not nodes: programs use them to
// write what cannot stay a view.
#pragma once
#include <functional>

#include "plan.h"

namespace fedtiny {

struct Run;
struct Storage;
class ThreadPool;

// Adds the whole gradient of some filters of a layer to a slab.
using FilterGradients = std::function<void(Index thread, Index first, Index filters, float* slab)>;

struct Operation {
  const char* name;
  int inputs;
  Shape (*shape)(Node&);  // of the output
  void (*forward)(Run&, const Op&) = nullptr;
  void (*backward)(Run&, const Op&) = nullptr;
  bool rereads_input = false;  // in the backward pass, even if it sees it as it is
  bool leads_norm = false;     // returns the sums that a batch norm after it needs
  // Floats that a thread needs, if not a few planes.
  Index (*scratch)(const Node&, const Options&, Index images) = nullptr;
  FilterGradients (*filter_gradients)(Run&, const Op&) = nullptr;
  Activation activation = Activation::None;  // that views go through
};

namespace operations {
extern const Operation input, convolution, linear, batch_norm, relu, add, max_pool, mean_pool,
    adaptive_pool, flatten, dropout, group_norm, layer_norm, relu6, leaky_relu, silu, hard_swish,
    hard_sigmoid, sigmoid, tanh, gelu, multiply, concat, reshape, permute, upsample, slice;
extern const Operation copy, combine;
}  // namespace operations

bool is_known(const Node& node);
const Operation& operation_of(const Node& node);

// batch_norm.cpp: from sums to what views and gradients go by.
void measure_batch(Run& run, int norm, Index bands, Index band);
void use_running_statistics(Run& run, int norm);
void finish_norm_gradient(Run& run, int norm);

// loss.cpp: cross-entropy and accuracy; the gradient of the logits, if there is a backward pass.
fedtiny_score cross_entropy(Run& run, const std::int64_t* labels);
void read_logits(Run& run, float* logits);

// fisher.cpp: one over the root of what a layer's inputs, and its filters, contribute to twice the
// Fisher information of a weight; first of the inputs, then of the filters.
void fisher_factors(Run& run, const Op& op, float* factors);

// grad_query.cpp: gradients of pruned weights.
void answer_grad_query(Run& run, const Op& op, fedtiny_grad_query& query);

// optimizer.cpp
void start_optimizer(Storage& storage, const fedtiny_rates& rates);
void update_parameters(Storage& storage, ThreadPool& pool);

}  // namespace fedtiny
