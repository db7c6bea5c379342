// SGD with momentum and Adam, with torch's constants and order of operations.
#include <cmath>
#include <cstring>

#include "network.h"

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

struct Slice {
  float *values, *first, *second;
  const float* gradients;
  Index count;
};

void sgd(const Slice& s, const fedtiny_rates& r, bool fresh) {
  const auto rate = static_cast<float>(r.learning_rate), decay = static_cast<float>(r.decay);
  const auto momentum = static_cast<float>(r.momentum);
  for (Index i = 0; i < s.count; ++i) {
    const float gradient = s.gradients[i] + decay * s.values[i];
    s.first[i] = fresh ? gradient : momentum * s.first[i] + gradient;
    s.values[i] -= rate * s.first[i];
  }
}

void adam(const Slice& s, const fedtiny_rates& r, Index step) {
  const auto decay = static_cast<float>(r.decay), epsilon = static_cast<float>(r.epsilon);
  const auto fresh1 = static_cast<float>(1 - r.beta1), fresh2 = static_cast<float>(1 - r.beta2);
  const auto old2 = static_cast<float>(r.beta2);
  const double correction1 = 1 - std::pow(r.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(r.beta2, static_cast<double>(step));
  const auto rate = static_cast<float>(r.learning_rate / correction1);
  const auto root2 = static_cast<float>(std::sqrt(correction2));
  for (Index i = 0; i < s.count; ++i) {
    const float gradient = s.gradients[i] + decay * s.values[i];
    s.first[i] += fresh1 * (gradient - s.first[i]);
    s.second[i] = old2 * s.second[i] + fresh2 * gradient * gradient;
    s.values[i] -= rate * s.first[i] / (std::sqrt(s.second[i]) / root2 + epsilon);
  }
}

}  // namespace

void Network::start(const fedtiny_rates& rates) {
  check_rates(rates);
  rates_ = rates;
  steps_ = 0;
  started_ = true;
  const int states = plan_.options.optimizer == FEDTINY_ADAM ? 2 : 1;
  for (int s = 0; s < states; ++s)
    std::fill_n(at<float>(plan_.moments[s]), plan_.parameters, 0.0F);
}

void Network::update() {
  ++steps_;
  pool_.run(ceil_div(plan_.parameters, SHARE), [&](Index, Index piece) {
    const Index first = piece * SHARE;
    const Slice slice = {at<float>(plan_.values) + first, at<float>(plan_.moments[0]) + first,
                         at<float>(plan_.moments[1]) + first, at<float>(plan_.gradients) + first,
                         std::min(SHARE, plan_.parameters - first)};
    if (plan_.options.optimizer == FEDTINY_ADAM)
      adam(slice, rates_, steps_);
    else
      sgd(slice, rates_, steps_ == 1);
  });
}

}  // namespace fedtiny
