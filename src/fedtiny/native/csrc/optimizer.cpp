// SGD with momentum and Adam, with torch's constants and order of operations.
#include <cmath>

#include "operations.h"
#include "storage.h"
#include "thread_pool.h"

namespace fedtiny {
namespace {

constexpr Index SHARE = Index{1} << 16;  // parameters of one piece of work

void check_rates(const fedtiny_rates& r) {
  const auto fine = [](double x) { return std::isfinite(x) && x >= 0; };
  if (!fine(r.learning_rate) || !fine(r.momentum) || !fine(r.decay) || !fine(r.epsilon))
    refuse("learning rate, momentum, decay and epsilon must be finite and not negative");
  if (!(r.beta1 >= 0 && r.beta1 < 1) || !(r.beta2 >= 0 && r.beta2 < 1))
    refuse("the betas of Adam must be from 0 to below 1");
}

void sgd(const Storage& s, const fedtiny_rates& r, Index begin, Index end) {
  const auto rate = static_cast<float>(r.learning_rate), decay = static_cast<float>(r.decay);
  const auto momentum = static_cast<float>(r.momentum);
  const bool fresh = s.optimizer.steps == 1;
  for (Index i = begin; i < end; ++i) {
    const float gradient = s.gradients[i] + decay * s.values[i];
    s.first_moment[i] = fresh ? gradient : momentum * s.first_moment[i] + gradient;
    s.values[i] -= rate * s.first_moment[i];
  }
}

void adam(const Storage& s, const fedtiny_rates& r, Index begin, Index end) {
  const auto decay = static_cast<float>(r.decay), epsilon = static_cast<float>(r.epsilon);
  const auto fresh1 = static_cast<float>(1 - r.beta1), fresh2 = static_cast<float>(1 - r.beta2);
  const auto old2 = static_cast<float>(r.beta2);
  const auto step = static_cast<double>(s.optimizer.steps);
  const auto rate = static_cast<float>(r.learning_rate / (1 - std::pow(r.beta1, step)));
  const auto root2 = static_cast<float>(std::sqrt(1 - std::pow(r.beta2, step)));
  for (Index i = begin; i < end; ++i) {
    const float gradient = s.gradients[i] + decay * s.values[i];
    s.first_moment[i] += fresh1 * (gradient - s.first_moment[i]);
    s.second_moment[i] = old2 * s.second_moment[i] + fresh2 * gradient * gradient;
    s.values[i] -= rate * s.first_moment[i] / (std::sqrt(s.second_moment[i]) / root2 + epsilon);
  }
}

}  // namespace

void start_optimizer(Storage& s, const fedtiny_rates& rates) {
  check_rates(rates);
  s.optimizer = {rates, 0, true};
  std::fill_n(s.first_moment, s.parameters, 0.0F);
  std::fill_n(s.second_moment, s.parameters, 0.0F);
}

void update_parameters(Storage& s, ThreadPool& pool) {
  const auto step = s.options.optimizer == FEDTINY_ADAM ? adam : sgd;
  ++s.optimizer.steps;
  pool.run(ceil_div(s.parameters, SHARE), [&](Index, Index piece) {
    step(s, s.optimizer.rates, piece * SHARE, std::min((piece + 1) * SHARE, s.parameters));
  });
}

}  // namespace fedtiny
