// A network in native code that trains and measures on the device's data: what NativeEngine
// (devices/native_engine.py) does, with the same draws.
#pragma once
#include "messages.h"
#include "spec.h"

namespace fedtiny::device {

// Who computes and when: the key of every random draw.
struct RngKey {
  std::int64_t seed = 0, round = 0, device = 0, part = 0;

  Generator generator(const char* purpose) const;
};

constexpr std::uint64_t MAX_SEED = (std::uint64_t{1} << 63) - 1;  // that dropout is keyed by

// So many gradients of a layer.
struct LayerCount {
  int layer;
  std::int64_t count;
};

struct Score {
  double loss, accuracy;
};

constexpr const char* POOL_COUNTS = "pool.counts";

// The candidates that a request carries: cuts of one theta with so many weights of each layer.
class Pool {
 public:
  Pool(const Request& request, const ParamSpec& spec);

  std::int64_t size() const { return counts_->shape[0]; }
  Theta candidate(std::int64_t number) const;

 private:
  void check_ranks() const;

  const Theta& theta_;
  const ParamSpec& spec_;
  const Array *counts_, *ranks_;
};

// How a request asks for batch-norm statistics.
struct StatisticsOrder {
  std::int64_t batch = 0, passes = 1;
  bool square = false;
};

class Engine {
 public:
  Engine(const Spec& spec, const Data& data);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Bytes that the network takes with so many kept weights, if asked for this too.
  std::int64_t planned(const std::vector<std::int64_t>& kept, std::int64_t forward_batch,
                       std::int64_t top_count) const;

  void load(const Theta& theta);
  Theta theta() const;
  // The mean loss; `sums` of a prunable layer each have its mean gradient added, if there are any.
  double train(const RngKey& key, std::int64_t epochs, const Theta& received,
               std::vector<std::vector<float>>& sums);
  std::vector<Gradient> top_gradients(const RngKey& key, const std::vector<LayerCount>& counts,
                                      double epsilon, bool fisher);
  // The gradients at the positions of some gradients, whose values are filled.
  void gradients_at(const RngKey& key, std::vector<Gradient>& asked, double epsilon, bool fisher);
  std::vector<Array> bn_statistics(const Pool& pool, const StatisticsOrder& order);
  // Of each candidate, with its row of the statistics.
  std::vector<float> losses(const Pool& pool, const std::vector<Array>& arrays);
  Score evaluate() { return measure(data_.indices); }

  std::int64_t batch() const { return spec_.train.batch; }
  const Data& data() const { return data_; }
  const Spec& spec() const { return spec_; }

 private:
  struct Batch {
    std::vector<float> images;
    std::vector<std::int64_t> labels;
  };
  // The statistics of one batch norm.
  struct Moments {
    std::int32_t node;
    std::vector<double> first, second;
  };
  using Samples = std::vector<std::int64_t>;

  void call(int failed) const;
  void reserve(std::int64_t forward_batch, std::int64_t top_count, bool complete);
  void prepare(const Mask& mask);
  void set(const Tensor& tensor, const float* values, std::int64_t count);
  void start(const RngKey& key, const Theta& received);
  void fill(Batch& batch, const std::int64_t* samples, std::int64_t count, const Draws* draws,
            std::int64_t first) const;
  fedtiny_score run(fedtiny_pass pass, const Batch& batch);
  std::int64_t batch_size() const;
  void measure_gradients(const RngKey& key, std::vector<Gradient>& asked, double epsilon,
                         bool fisher, bool at_positions);
  Score measure(const Samples& samples);
  void forward_own(const Samples& samples, std::int64_t start, std::int64_t count);
  std::vector<double> get(std::int32_t node, std::int32_t parameter, std::int64_t size) const;
  void take_means(std::vector<Moments>& found, double weight, bool square);

  const Spec& spec_;
  const Data& data_;
  fedtiny_network* network_ = nullptr;
  fedtiny_options options_{};
  std::shared_ptr<const Mask> mask_;  // of the prepared network
};

}  // namespace fedtiny::device
