// What a device needs beside its data (DeviceSpec of devices/device_spec.py), and what it works out
// from the round.
#pragma once
#include "../fedtiny_native.h"
#include "data.h"
#include "json.h"
#include "model.h"

namespace fedtiny::device {

struct TrainSettings {
  bool adam = true, decay_norms = true;
  double lr = 0, weight_decay = 0, proximal_mu = 0, freeze_bn = 1;
  double lr_final = 0, lr_gamma = 0.1;
  std::int64_t batch = 0, rounds = 0, lr_warmup = 0;
  enum class Schedule { constant, cosine, steps } schedule = Schedule::constant;
  std::vector<std::int64_t> milestones;

  double lr_factor(std::int64_t round) const;
  bool freezes_bn(std::int64_t round) const;
  fedtiny_rates rates(std::int64_t round) const;
};

struct Spec {
  explicit Spec(const JsonView& plain);

  std::int64_t seed = 0;
  ParamSpec params;
  Preparation preparation;
  TrainSettings train;
  std::vector<fedtiny_node> nodes;
  bool half = false, recompute = false, remove_dead = false;
};

}  // namespace fedtiny::device
