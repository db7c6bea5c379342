// SGD with momentum and Adam, with torch's constants and order of operations.
#include <cmath>

#include "operations.h"
#include "storage.h"
#include "thread_pool.h"

namespace fedtiny {
namespace {

constexpr Index SHARE = Index{1} << 16;  // parameters of one piece of work

void check_rates(const fedtiny_rates& r, const Options& options) {
  const auto fine = [](double x) { return std::isfinite(x) && x >= 0; };
  if (!fine(r.learning_rate) || !fine(r.momentum) || !fine(r.decay) || !fine(r.rest_decay) ||
      !fine(r.epsilon) || !fine(r.proximal))
    refuse("learning rate, momentum, decay, epsilon and proximal must be finite and not negative");
  if (!(r.beta1 >= 0 && r.beta1 < 1) || !(r.beta2 >= 0 && r.beta2 < 1))
    refuse("the betas of Adam must be from 0 to below 1");
  if (r.proximal > 0 && options.proximal == 0)
    refuse("a proximal term needs the values of the start, which were not planned for");
}

// With the weight decay, and with the proximal term if there is one.
float gradient_at(const Storage& s, float decay, Index i) {
  const float gradient = s.gradients[i] + decay * s.values[i];
  if (s.start == nullptr) return gradient;
  const auto proximal = static_cast<float>(s.optimizer.rates.proximal);
  return gradient + proximal * (s.values[i] - s.start[i]);
}

void sgd(const Storage& s, const fedtiny_rates& r, const Span& span) {
  const auto rate = static_cast<float>(r.learning_rate);
  const auto momentum = static_cast<float>(r.momentum);
  const bool fresh = s.optimizer.steps == 1;
  for (Index i = span.begin; i < span.end; ++i) {
    const float gradient = gradient_at(s, span.decay, i);
    s.first_moment[i] = fresh ? gradient : momentum * s.first_moment[i] + gradient;
    s.values[i] -= rate * s.first_moment[i];
  }
}

void adam(const Storage& s, const fedtiny_rates& r, const Span& span) {
  const auto epsilon = static_cast<float>(r.epsilon);
  const auto fresh1 = static_cast<float>(1 - r.beta1), fresh2 = static_cast<float>(1 - r.beta2);
  const auto old2 = static_cast<float>(r.beta2);
  const auto step = static_cast<double>(s.optimizer.steps);
  const auto rate = static_cast<float>(r.learning_rate / (1 - std::pow(r.beta1, step)));
  const auto root2 = static_cast<float>(std::sqrt(1 - std::pow(r.beta2, step)));
  for (Index i = span.begin; i < span.end; ++i) {
    const float gradient = gradient_at(s, span.decay, i);
    s.first_moment[i] += fresh1 * (gradient - s.first_moment[i]);
    s.second_moment[i] = old2 * s.second_moment[i] + fresh2 * gradient * gradient;
    s.values[i] -= rate * s.first_moment[i] / (std::sqrt(s.second_moment[i]) / root2 + epsilon);
  }
}

// The weights of each layer and what lies between them.
std::vector<Span> spans_of(const Storage& s, const fedtiny_rates& rates) {
  const auto decay = static_cast<float>(rates.decay);
  const auto rest_decay = static_cast<float>(rates.rest_decay);
  std::vector<Span> spans;
  Index done = 0;
  const auto add = [&](Index end, float by) {
    for (; done < end; done = spans.back().end)
      spans.push_back({done, std::min(done + SHARE, end), by});
  };
  for (const Node& node : s.nodes) {
    if (decay == rest_decay || !node.is_layer() || !node.owns()) continue;
    const Layer& layer = s.layers[node.place];
    add(layer.weight.values - s.values, rest_decay);
    add(done + layer.kept, decay);
  }
  add(s.parameters, rest_decay);
  return spans;
}

}  // namespace

void start_optimizer(Storage& s, const fedtiny_rates& rates) {
  check_rates(rates, s.options);
  s.optimizer = {rates, 0, true, spans_of(s, rates)};
  std::fill_n(s.first_moment, s.parameters, 0.0F);
  std::fill_n(s.second_moment, s.parameters, 0.0F);
  if (s.start != nullptr) std::copy_n(s.values, s.parameters, s.start);
}

void update_parameters(Storage& s, ThreadPool& pool) {
  const auto step = s.options.optimizer == FEDTINY_ADAM ? adam : sgd;
  ++s.optimizer.steps;
  const std::vector<Span>& spans = s.optimizer.spans;
  pool.run(static_cast<Index>(spans.size()), [&](Index, Index piece) {
    step(s, s.optimizer.rates, spans[static_cast<std::size_t>(piece)]);
  });
}

}  // namespace fedtiny
