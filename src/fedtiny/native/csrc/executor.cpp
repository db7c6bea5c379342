#include "executor.h"

#include <cmath>

namespace fedtiny {
namespace {

constexpr double HALF_SCALE = 64.0;  // times the batch: keeps gradients in the range of halves

float power_of_two_near(double x) {
  return static_cast<float>(std::exp2(std::round(std::log2(x))));
}

}  // namespace

void Executor::check_pass(const Pass& pass) const {
  const Options& options = run_.storage.options;
  if (pass.mode < FEDTINY_FORWARD || pass.mode > FEDTINY_TRAIN) refuse("no such mode of a pass");
  if (pass.images == nullptr) refuse("no image was given");
  if (pass.labels == nullptr && pass.backward()) refuse("no label was given");
  if (pass.mode == FEDTINY_TRAIN && !run_.storage.optimizer.started)
    refuse("the optimizer was not started");
  if (!(pass.epsilon >= 0 && pass.epsilon < HUGE_VAL))
    refuse("epsilon must be finite and not negative");
  if (pass.query_count < 0 || (pass.query_count > 0 && pass.queries == nullptr))
    refuse("no gradients to ask for were given");
  for (int k = 0; k < pass.query_count; ++k) check_query(pass.queries[k]);
  const Index max_images =
      pass.backward() ? options.batch : std::max(options.forward_batch, options.batch);
  if (pass.count < 1 || pass.count > max_images)
    refuse("a batch of " + std::to_string(pass.count) + " images was given; 1 to " +
           std::to_string(max_images) + " were planned for");
  const Index classes = run_.storage.nodes.back().out.channels;
  for (Index i = 0; pass.labels != nullptr && i < pass.count; ++i)
    if (pass.labels[i] < 0 || pass.labels[i] >= classes)
      refuse("label " + std::to_string(pass.labels[i]) + " is not one of " +
             std::to_string(classes) + " classes");
}

void Executor::check_query(const fedtiny_grad_query& query) const {
  const Storage& s = run_.storage;
  if (s.options.remove_dead != 0)
    refuse("gradients of pruned weights need the channels that were left out");
  if (query.node < 0 || query.node >= s.nodes.count() || !s.nodes[query.node].is_layer() ||
      !s.nodes[query.node].owns())
    refuse("gradients are asked of a node that is no layer");
  if (query.fisher != nullptr && s.nodes[query.node].adds_gradient)
    refuse("the Fisher information of a layer that runs twice is not there");
  if (query.dense != nullptr) return;
  if (query.at_positions != 0) return check_positions(query);
  if (query.count < 0 || query.count > s.options.top_count)
    refuse("a layer is asked for " + std::to_string(query.count) + " gradients; at most " +
           std::to_string(s.options.top_count) + " were planned for");
  if (query.count > 0 && (query.indices == nullptr || query.values == nullptr))
    refuse("there is no room for the gradients asked for");
}

void Executor::check_positions(const fedtiny_grad_query& query) const {
  const Node& node = run_.storage.nodes[query.node];
  if (query.count < 0 || (query.count > 0 && (query.indices == nullptr || query.values == nullptr)))
    refuse("there is no room for the gradients asked for");
  for (Index i = 0; i < query.count; ++i) {
    const Index position = query.indices[i], least = i > 0 ? Index{query.indices[i - 1]} + 1 : 0;
    if (position < least || position >= node.weights())
      refuse("the weights whose gradients are asked for are out of range or out of order");
  }
}

fedtiny_score Executor::run(const fedtiny_pass& given) {
  const Pass pass{given};
  check_pass(pass);
  run_.loss_scale = pass.backward() && run_.bytes == 2
                        ? power_of_two_near(HALF_SCALE * static_cast<double>(pass.count))
                        : 1.0F;
  run_.begin(pass);
  run_forward();
  if (pass.logits != nullptr) read_logits(run_, pass.logits);
  fedtiny_score score{};
  if (pass.labels != nullptr) score = cross_entropy(run_, pass.labels);
  if (pass.backward()) run_backward();
  if (pass.mode == FEDTINY_TRAIN) update_parameters(run_.storage, pool_);
  return score;
}

void Executor::run_forward() {
  for (const Op& op : run_.storage.program.ops) {
    op.operation->forward(run_, op);
    const int norm = run_.output(op).norm;
    if (norm >= 0 && !run_.pass.own_statistics()) use_running_statistics(run_, norm);
  }
}

void Executor::run_backward() {
  const Storage& s = run_.storage;
  for (const Node& node : s.nodes)
    if (node.is_norm())
      for (double* sums : {s.norms[node.place].sum, s.norms[node.place].product})
        std::fill_n(sums, node.out.channels, 0.0);
  for (Index i = s.program.ops.count() - 1; i > 0; --i) {
    const Op& op = s.program.ops[i];
    for (const int again : op.recomputes) recompute(s.program.ops[again]);
    const int norm = run_.output(op).norm;
    if (norm >= 0) finish_norm_gradient(run_, norm);
    for (int k = 0; k < run_.pass.query_count; ++k)
      if (run_.pass.queries[k].node == s.nodes[op.node].owner())
        answer_grad_query(run_, op, run_.pass.queries[k]);
    op.operation->backward(run_, op);
  }
}

void Executor::recompute(const Op& op) {
  run_.value_places[op.out] = run_.placement.again[op.out];
  run_.recomputing = true;
  op.operation->forward(run_, op);
  run_.recomputing = false;
}

void Executor::get_input_gradient(float* values, Index count) {
  const Shape& shape = run_.storage.program.tensors[0].shape;
  if (run_.storage.options.input_gradient == 0)
    refuse("the gradient of the images was not asked for");
  if (!run_.pass.backward() || count != run_.pass.count * shape.size())
    refuse("there is no gradient of so many images");
  run_.each_plane(shape, [&](const Plane& plane) {
    const Index first = plane.block * run_.lanes * shape.size() + plane.channel * shape.plane();
    float* rows = run_.scratch(plane.thread);
    run_.kernels.load_rows(run_.gradient_row(0, plane, shape.plane()), rows);
    for (Index i = 0; i < shape.plane() * run_.lanes; ++i) rows[i] /= run_.loss_scale;
    run_.unpack(rows, plane.block, values + first, shape.plane(), shape.size());
  });
}

}  // namespace fedtiny
