// A network that is ready to run: its memory, its parameters, and its passes.
#pragma once
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "dead.h"
#include "plan.h"
#include "thread_pool.h"

namespace fedtiny {

constexpr Index STREAM_BYTES = Index{4} << 20;

// One block of zeroed memory, taken when made.
class Arena {
 public:
  explicit Arena(Index bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  char* start() const { return start_; }

 private:
  std::size_t bytes_;
  void* block_;
  char* start_;
};

// `numbers` has the whole layer's number of each channel that is there. Running and batch
// statistics are of the whole layer, the rest is of what is there.
struct Norm {
  const std::int32_t* numbers;
  float *running_mean, *running_var;
  double *mean, *var, *sum, *product;
  float *scale, *shift, *batch_mean, *a, *k1, *k2;
};

// `numbers` as above, of filters. Weights, biases and row_begin are of the whole layer.
struct Layer {
  const std::int32_t* numbers;
  Index kept;
  float *weights, *gradient, *bias, *bias_gradient;
  std::int32_t *positions, *row_begin, *offsets;
  std::int32_t *back_begin, *back_offsets, *back_index;
  float* back_weights;

  void gather_back_weights(Index buckets) const {
    for (Index j = 0; j < back_begin[buckets]; ++j) back_weights[j] = weights[back_index[j]];
  }
};

// Which rows and columns a pool's outputs cover.
struct PoolTable {
  std::vector<std::int32_t> begin[2], end[2], divisor[2];

  Windows windows(int axis) const {
    return {static_cast<Index>(begin[axis].size()), begin[axis].data(), end[axis].data(),
            divisor[axis].data()};
  }
  Pool pool(Index width) const { return {nullptr, nullptr, nullptr, width, windows(0), windows(1)}; }
};

struct Wanted {
  int op;
  fedtiny_wanted* result;
};

// What one pass does beside computing.
struct Pass {
  Index images = 0;
  bool own_statistics = false;
  bool dropout = false;
  bool update_statistics = false;
  bool keep_gradients = false;
  std::uint64_t seed = 0;
  double epsilon = 0;  // of batch norm, at least
};

class Network {
 public:
  Network(const std::vector<Node>& nodes, const Options& options, const std::vector<Index>& kept,
          const std::int32_t* const* positions);

  const fedtiny_memory& memory() const { return plan_.memory; }
  Index parameter_count(int node, int parameter) const;
  void set(int node, int parameter, const float* values, Index count);
  void get(int node, int parameter, double* values, Index count) const;
  void get_gradient(int node, int parameter, float* values, Index count) const;
  void get_input_gradient(float* values, Index count) const;

  void start(const fedtiny_rates& rates);
  fedtiny_score train(const float* images, const std::int64_t* labels, Index count,
                      std::uint64_t seed, bool update, fedtiny_wanted* wanted, int wanted_count);
  fedtiny_score measure(const float* images, const std::int64_t* labels, Index count,
                        std::uint64_t seed, double epsilon, fedtiny_wanted* wanted,
                        int wanted_count);
  fedtiny_score forward(const float* images, const std::int64_t* labels, Index count,
                        bool own_statistics, float* logits);

 private:
  // lists.cpp
  void build_lists(int node, const std::int32_t* positions);
  void build_back_lists(int node);
  std::vector<std::int32_t> input_numbers(int node) const;

  // passes.cpp
  void begin(const Pass& pass, bool backward);
  void run_forward(const float* images);
  void run_backward(const std::vector<Wanted>& wanted);
  void pack_images(const float* images);
  void forward_op(int i);
  void backward_op(int i, const std::vector<Wanted>& wanted);
  LoadRows view_rows(const View& view, Index channel, Index offset) const;

  // convolution.cpp
  void convolve(const Op& op, bool with_sums);
  void convolve_backward(int i);
  void load_piece(const Op& op, const Geometry& g, Index block, Index first, bool all,
                  float* scratch);
  void load_gradients(const Op& op, const Geometry& g, Index block, Index first, Index filter,
                      Index filters, bool all, float* scratch);
  void hand_back_piece(int i, const Geometry& g, Index block, Index first, Index piece,
                       const float* gradients, float* rows);
  void sum_chunks(const Op& op, Index chunks);

  // linear.cpp
  void linear(const Op& op);
  void linear_backward(int i);
  const float* linear_inputs(const Op& op);
  const float* linear_gradients(const Op& op);

  // plane.cpp
  void plane(const Op& op);
  void plane_backward(int i);
  void emit_plane(int i, std::size_t term, Index piece, const float* rows);
  Dropout dropout_of(const Op& op, Index block, Index channel, Index plane, float* rows) const;
  void combine(const Op& op);
  void combine_backward(int i);
  void finish_combine(const Op& op);

  // norm.cpp
  void finish_norm(int norm, Index bands, Index band);
  void use_running_statistics(int norm);
  void finish_norm_gradient(int norm);
  const float* bias_before(int norm) const;
  const float* norm_scale(int norm) const;
  const float* norm_shift(int norm) const;

  // loss.cpp
  fedtiny_score both_ways(const Pass& pass, const float* images, const std::int64_t* labels,
                          const std::vector<Wanted>& wanted);
  fedtiny_score loss(const std::int64_t* labels, bool gradient);
  fedtiny_score block_loss(float* rows, const std::int64_t* labels, Index block) const;
  void read_logits(float* logits);

  // emit.cpp
  char* gradient(int tensor, Index offset) const;
  LoadGradient gradient_rows(int tensor, Index block, Index channel, Index offset) const;
  EmitRows emission_of(int i, std::size_t term, Index channel, Index offset) const;
  void keep_sums(const EmitRows& rows, Index piece, Index channel, Index channels);
  void collect_sums(int i, std::size_t term, Index pieces);
  void add_sums(const std::array<int, 2>& norms, std::size_t count, Index channels, Index pieces);
  bool writes_nothing(int i, std::size_t term) const;

  // top.cpp
  std::vector<Wanted> checked_wanted(fedtiny_wanted* wanted, int count) const;
  void wanted_gradient(const Op& op, const Wanted& wanted);
  std::vector<std::int32_t> tap_offsets(int node) const;
  void filter_gradients(const Op& op, Index first, Index filters,
                        const std::vector<std::int32_t>& taps, float* inputs, float* slab);

  // optimizer.cpp
  void update();

  const Node& node(int i) const { return nodes_[static_cast<std::size_t>(i)]; }
  const Layer& layer(int node) const { return layers_[static_cast<std::size_t>(node)]; }
  const Norm& norm(int node) const { return norms_[static_cast<std::size_t>(node)]; }
  const Geometry& geometry(int node) const { return *geometries_[static_cast<std::size_t>(node)]; }
  template <class T>
  T* at(Index place) const {
    return reinterpret_cast<T*>(arena_->start() + place);
  }
  float* scratch(Index thread) const {
    return at<float>(plan_.scratch) + thread * plan_.scratch_each;
  }
  char* value(int tensor, Index offset) const {
    return values_at_[static_cast<std::size_t>(tensor)] + offset * bytes_;
  }
  Index lanes_in(Index block) const { return std::min(lanes_, pass_.images - block * lanes_); }
  // Whether a tensor is too large for the caches to hold until it is read.
  bool streams(int tensor) const {
    return blocks_ * program_.tensor(tensor).shape.size() * lanes_ * bytes_ >= STREAM_BYTES;
  }

  Channels channels_;
  std::vector<Node> nodes_;
  Program program_;
  Plan plan_;
  const Kernels& kernels_;
  std::unique_ptr<Arena> arena_;
  ThreadPool pool_;
  std::vector<Layer> layers_;
  std::vector<Norm> norms_;
  std::vector<std::unique_ptr<Geometry>> geometries_;
  std::vector<PoolTable> pools_;
  Index lanes_, bytes_;
  fedtiny_rates rates_{};
  Index steps_ = 0;
  bool started_ = false;

  Pass pass_;
  Index blocks_ = 0;
  Placement placement_;
  bool placed_backward_ = false;
  Index placed_images_ = -1;
  std::vector<char*> values_at_;
  float loss_scale_ = 1.0F;
};

}  // namespace fedtiny
