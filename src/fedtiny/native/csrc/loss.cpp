// Cross-entropy, accuracy, and the passes that end in them.
#include <cmath>

#include "network.h"

namespace fedtiny {
namespace {

constexpr double HALF_SCALE = 64.0;  // times the batch: keeps gradients in the range of halves

void check_labels(const std::int64_t* labels, Index count, Index classes) {
  for (Index i = 0; i < count; ++i)
    if (labels[i] < 0 || labels[i] >= classes)
      refuse("label " + std::to_string(labels[i]) + " is not one of " + std::to_string(classes) +
             " classes");
}

void check_images(Index count, Index most) {
  if (count < 1 || count > most)
    refuse("a batch of " + std::to_string(count) + " images was given; 1 to " +
           std::to_string(most) + " were planned for");
}

float power_of_two_near(double x) {
  return static_cast<float>(std::exp2(std::round(std::log2(x))));
}

}  // namespace

// One block's logits lie in `rows` as [class][lane]; they become the gradient of the loss.
fedtiny_score Network::block_loss(float* rows, const std::int64_t* labels, Index block) const {
  const Index classes = nodes_.back().out.channels;
  fedtiny_score score{};
  for (Index lane = 0; lane < lanes_; ++lane) {
    float* own = rows + lane;
    if (lane >= lanes_in(block)) {
      for (Index c = 0; c < classes; ++c) own[c * lanes_] = 0.0F;
      continue;
    }
    const Index label = labels[block * lanes_ + lane];
    Index best = 0;
    for (Index c = 1; c < classes; ++c)
      if (own[c * lanes_] > own[best * lanes_]) best = c;
    const double top = static_cast<double>(own[best * lanes_]);
    double sum = 0;
    for (Index c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(own[c * lanes_]) - top);
    score.loss += std::log(sum) + top - static_cast<double>(own[label * lanes_]);
    score.correct += best == label ? 1 : 0;
    const double share = static_cast<double>(loss_scale_) / static_cast<double>(pass_.images);
    for (Index c = 0; c < classes; ++c) {
      const double p = std::exp(static_cast<double>(own[c * lanes_]) - top) / sum;
      own[c * lanes_] = static_cast<float>((p - (c == label ? 1.0 : 0.0)) * share);
    }
  }
  return score;
}

fedtiny_score Network::loss(const std::int64_t* labels, bool gradient) {
  const int output = program_.output;
  const Index classes = nodes_.back().out.channels;
  fedtiny_score total{};
  float* rows = at<float>(plan_.logits);
  View view;
  view.tensor = output;
  for (Index block = 0; block < blocks_; ++block) {
    LoadRows load = view_rows(view, 0, block * classes * lanes_);
    load.columns = load.width = classes;
    kernels_.load_rows(load, rows);
    const fedtiny_score score = block_loss(rows, labels, block);
    total.loss += score.loss;
    total.correct += score.correct;
    if (!gradient) continue;
    EmitRows e{};
    e.rows = rows;
    e.gradient = this->gradient(output, block * classes * lanes_);
    e.count = 1;
    e.columns = classes;
    e.half = bytes_ == 2;
    kernels_.emit_rows(e);
  }
  return total;
}

void Network::read_logits(float* logits) {
  const Index classes = nodes_.back().out.channels;
  float* rows = at<float>(plan_.logits);
  View view;
  view.tensor = program_.output;
  for (Index block = 0; block < blocks_; ++block) {
    LoadRows load = view_rows(view, 0, block * classes * lanes_);
    load.columns = load.width = classes;
    kernels_.load_rows(load, rows);
    kernels_.unpack(
        {rows, logits + block * lanes_ * classes, classes, classes, lanes_in(block)});
  }
}

fedtiny_score Network::forward(const float* images, const std::int64_t* labels, Index count,
                               bool own_statistics, float* logits) {
  check_images(count, std::max(plan_.options.forward_batch, plan_.options.batch));
  if (labels != nullptr) check_labels(labels, count, nodes_.back().out.channels);
  Pass pass;
  pass.images = count;
  pass.own_statistics = own_statistics;
  begin(pass, false);
  run_forward(images);
  if (logits != nullptr) read_logits(logits);
  return labels != nullptr ? loss(labels, false) : fedtiny_score{};
}

fedtiny_score Network::both_ways(const Pass& pass, const float* images, const std::int64_t* labels,
                                 const std::vector<Wanted>& wanted) {
  check_images(pass.images, plan_.options.batch);
  check_labels(labels, pass.images, nodes_.back().out.channels);
  loss_scale_ = bytes_ == 2 ? power_of_two_near(HALF_SCALE * static_cast<double>(pass.images)) : 1.0F;
  begin(pass, true);
  run_forward(images);
  const fedtiny_score score = loss(labels, true);
  run_backward(wanted);
  return score;
}

fedtiny_score Network::train(const float* images, const std::int64_t* labels, Index count,
                             std::uint64_t seed, bool with_update, fedtiny_wanted* wanted,
                             int wanted_count) {
  if (with_update && !started_) refuse("the optimizer was not started");
  Pass pass;
  pass.images = count;
  pass.own_statistics = pass.dropout = pass.update_statistics = pass.keep_gradients = true;
  pass.seed = seed;
  const fedtiny_score score = both_ways(pass, images, labels, checked_wanted(wanted, wanted_count));
  if (with_update) update();
  return score;
}

fedtiny_score Network::measure(const float* images, const std::int64_t* labels, Index count,
                               std::uint64_t seed, double epsilon, fedtiny_wanted* wanted,
                               int wanted_count) {
  if (!(epsilon >= 0 && epsilon < HUGE_VAL)) refuse("epsilon must be finite and not negative");
  Pass pass;
  pass.images = count;
  pass.own_statistics = pass.dropout = true;
  pass.seed = seed;
  pass.epsilon = epsilon;
  return both_ways(pass, images, labels, checked_wanted(wanted, wanted_count));
}

void Network::get_input_gradient(float* values, Index count) const {
  const Shape& shape = program_.tensors[0].shape;
  if (plan_.options.input_gradient == 0) refuse("the gradient of the images was not asked for");
  if (!placed_backward_ || count != pass_.images * shape.size())
    refuse("there is no gradient of so many images");
  std::vector<float> rows(static_cast<std::size_t>(shape.size() * lanes_) + 16);
  auto* aligned = reinterpret_cast<float*>(
      (reinterpret_cast<std::uintptr_t>(rows.data()) + 63) / 64 * 64);
  for (Index block = 0; block < blocks_; ++block) {
    LoadGradient load = gradient_rows(0, block, 0, block * shape.size() * lanes_);
    load.rows = load.height = 1;
    load.columns = load.width = shape.size();
    kernels_.load_gradient(load, aligned);
    for (Index i = 0; i < shape.size() * lanes_; ++i) aligned[i] /= loss_scale_;
    kernels_.unpack({aligned, values + block * lanes_ * shape.size(), shape.size(), shape.size(),
                     lanes_in(block)});
  }
}

}  // namespace fedtiny
