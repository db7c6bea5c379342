// Group norm and layer norm: every image is measured by itself, so a lane has statistics of its
// own. They are worked out again in the backward pass; nothing is kept beside what is read.
#include <cmath>

#include "run.h"

namespace fedtiny {
namespace {

struct ImageNormRun {
  ImageNormRun(Run& r, const Op& o) : run(r), op(o) {}

  // One group of one block's channels, with a thread's scratch: two planes, then four arrays of
  // statistics.
  struct Unit {
    Index thread, block, first;  // first: of its channels
    float *rows, *values, *mean, *inverse, *sum, *product;
  };

  Unit unit(Index thread, Index i) const {
    Unit u{};
    u.thread = thread;
    u.block = i / groups;
    u.first = i % groups * channels;
    u.rows = run.scratch(thread);
    float* next = u.rows;
    for (float** array : {&u.values, &u.mean}) *array = next += shape.plane() * run.lanes;
    for (float** array : {&u.inverse, &u.sum, &u.product}) *array = next += places;
    return u;
  }

  template <class Work>  // (const Plane&)
  void each_channel(const Unit& u, const Work& work) const {
    for (Index c = u.first; c < u.first + channels; ++c) {
      const Index number = u.block * shape.channels + c;
      work(Plane{u.thread, number, u.block, c, number * shape.plane() * run.lanes});
    }
  }

  ImageNorm kernel(const Unit& u, Index channel) const {
    return {u.rows,
            u.values,
            shape.plane(),
            apart,
            u.mean,
            u.inverse,
            u.sum,
            u.product,
            norm.weight.values[channel],
            norm.bias.values[channel]};
  }

  void load(const Plane& plane, float* rows) const {
    run.kernels.load_rows(run.view_rows(op.in[0], plane.channel, plane.offset), rows);
  }

  void clear_sums(const Unit& u) const {
    for (float* array : {u.sum, u.product}) std::fill_n(array, places, 0.0F);
  }

  void add_moments(const Unit& u) const {
    clear_sums(u);
    each_channel(u, [&](const Plane& plane) {
      load(plane, u.rows);
      run.kernels.image_moments(kernel(u, plane.channel));
    });
  }

  // Mean and deviation, the deviation from the mean.
  void measure(const Unit& u) const {
    std::fill_n(u.mean, places, 0.0F);
    add_moments(u);
    for (Index i = 0; i < places; ++i) u.mean[i] = u.sum[i] / count;
    add_moments(u);
    for (Index i = 0; i < places; ++i)
      u.inverse[i] = 1.0F / std::sqrt(u.product[i] / count + node.epsilon);
  }

  void forward() const {
    run.pool.run(run.blocks * groups, [&](Index thread, Index i) {
      const Unit u = unit(thread, i);
      measure(u);
      each_channel(u, [&](const Plane& plane) {
        load(plane, u.rows);
        run.kernels.image_normalize(kernel(u, plane.channel));
        run.kernels.store_rows(
            run.stored(one_row(u.rows, shape.plane()), run.value(op.out, plane.offset)));
      });
    });
  }

  void load_both(const Unit& u, const Plane& plane) const {
    run.kernels.load_rows(run.gradient_row(op.out, plane, shape.plane()), u.rows);
    load(plane, u.values);
  }

  // What the parameters of each channel get of each block lies in `partials`.
  void backward() const {
    run.pool.run(run.blocks * groups, [&](Index thread, Index i) {
      const Unit u = unit(thread, i);
      measure(u);
      clear_sums(u);
      each_channel(u, [&](const Plane& plane) {
        load_both(u, plane);
        channel_sums(plane.number) = run.kernels.image_products(kernel(u, plane.channel));
      });
      if (op.in[0].grad.needed) input_grad(u);
    });
    if (op.in[0].grad.needed) run.collect_sums(op.in[0], run.blocks);
    if (run.pass.learns()) sum_blocks();
  }

  void input_grad(const Unit& u) const {
    for (float* array : {u.sum, u.product})
      for (Index i = 0; i < places; ++i) array[i] /= count;
    each_channel(u, [&](const Plane& plane) {
      load_both(u, plane);
      run.kernels.image_gradient(kernel(u, plane.channel));
      run.accumulate_plane(op.in[0], plane, u.rows);
    });
  }

  ChannelSums& channel_sums(Index i) const {
    return reinterpret_cast<ChannelSums*>(run.storage.partials)[i];
  }

  void sum_blocks() const {
    const double unscale = 1.0 / static_cast<double>(run.loss_scale);
    for (Index c = 0; c < shape.channels; ++c) {
      double sum = 0, product = 0;
      for (Index block = 0; block < run.blocks; ++block) {
        const ChannelSums& own = channel_sums(block * shape.channels + c);
        sum += static_cast<double>(own.sum);
        product += static_cast<double>(own.product);
      }
      put(norm.bias.gradient[c], sum * unscale);
      put(norm.weight.gradient[c], product * unscale);
    }
  }

  void put(float& gradient, double own) const {
    gradient = static_cast<float>(own) + (node.adds_gradient ? gradient : 0.0F);
  }

  Run& run;
  const Op& op;
  const Node& node = run.node(op);
  const Norm& norm = run.storage.norms[op.node];
  const Shape shape = run.output(op).shape;
  const bool apart = node.kind == FEDTINY_LAYER_NORM;
  const Index groups = apart ? 1 : node.groups, channels = shape.channels / groups;
  const Index places = (apart ? shape.plane() : 1) * run.lanes;
  const float count = static_cast<float>(channels * (apart ? 1 : shape.plane()));
};

void forward(Run& run, const Op& op) { ImageNormRun(run, op).forward(); }
void backward(Run& run, const Op& op) { ImageNormRun(run, op).backward(); }

Index scratch(const Node& node, const Options& o, Index) { return 6 * node.in.plane() * o.lanes; }

Shape layer_shape(Node& node) {
  need(std::isfinite(node.epsilon) && node.epsilon > 0, node, "needs an epsilon above 0");
  return node.in;
}

Shape group_shape(Node& node) {
  check_groups(node, node.in.channels);
  return layer_shape(node);
}

constexpr Operation image_norm(const char* name, Shape (*shape)(Node&)) {
  return {name, 1, shape, forward, backward, /*rereads_input=*/true, /*leads_norm=*/false, scratch};
}

}  // namespace

const Operation operations::group_norm = image_norm("group norm", group_shape);
const Operation operations::layer_norm = image_norm("layer norm", layer_shape);

}  // namespace fedtiny
