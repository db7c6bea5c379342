#include "run.h"

namespace fedtiny {
namespace {

constexpr Index STREAM_BYTES = Index{4} << 20;

LoadRows whole_plane(const Shape& shape, Index lanes, bool half) {
  LoadRows rows{};
  rows.height = rows.rows = shape.height;
  rows.width = rows.columns = shape.width;
  rows.row_stride = shape.width * lanes;
  rows.row_step = rows.column_step = 1;
  rows.half = half;
  return rows;
}

// Quotients by one number; of two bytes without a division, exact since n * by is below 2^32.
class Quotient {
 public:
  explicit Quotient(Index by)
      : by_(static_cast<std::uint32_t>(by)), factor_((std::uint64_t{1} << 32) / by_ + 1) {}
  Index operator()(std::uint16_t n) const { return static_cast<Index>(n * factor_ >> 32); }
  Index operator()(std::uint32_t n) const { return n / by_; }

 private:
  std::uint32_t by_;
  std::uint64_t factor_;
};

template <class Offset>
void order_row(const Offset* offsets, const float* weights, Index count, const Quotient& bucket,
               std::int32_t* places, float* ordered) {
  for (Index j = 0; j < count; ++j) ordered[places[bucket(offsets[j])]++] = weights[j];
}

}  // namespace

Run::Run(Storage& s, ThreadPool& p)
    : storage(s),
      pool(p),
      kernels(*kernels_for(s.options.lanes)),
      lanes(s.options.lanes),
      bytes(s.options.value_bytes()) {}

void Run::begin(const Pass& next) {
  pass = next;
  blocks = storage.options.blocks(pass.count);
  if (pass.own_statistics()) storage.measured_images = pass.count;
  // As planned, for the most images: fewer could be packed otherwise and need more room.
  const Options& o = storage.options;
  const bool training = pass.backward() || pass.count > o.forward_batch;
  const Index images = training ? o.batch : o.forward_batch;
  if (placed_images != images || placed_for_training != training) {
    placement = placement_of(storage.program, o, images, training);
    placed_images = images;
    placed_for_training = training;
  }
  value_places = placement.values;
}

int Run::measured_norm(const Op& op) const {
  return pass.own_statistics() && !recomputing ? output(op).norm : -1;
}

bool Run::streams(int tensor) const {
  const Index values = blocks * storage.program.tensors[tensor].shape.size() * lanes;
  return values * bytes >= STREAM_BYTES;
}

LoadRows Run::view_rows(const View& view, Index channel, Index offset) const {
  LoadRows rows = whole_plane(tensor(view).shape, lanes, bytes == 2);
  rows.plane = value(view.tensor, offset);
  rows.activation = view.activation;
  rows.leak = view.leak;
  rows.scale = 1.0F;
  rows.affine = view.norm >= 0;
  if (rows.affine) {
    rows.scale = storage.norms[view.norm].scale[channel];
    rows.shift = storage.norms[view.norm].shift[channel];
  }
  return rows;
}

LoadRows Run::gradient_rows(int tensor, Index block, Index channel, Index offset) const {
  const Tensor& t = storage.program.tensors[tensor];
  LoadRows rows = whole_plane(t.shape, lanes, bytes == 2);
  rows.plane = gradient(tensor, offset);
  if (t.norm < 0) return rows;
  const Norm& norm = storage.norms[t.norm];
  rows.value = value(tensor, offset);
  rows.lanes = lanes_in(block);
  rows.scale = norm.a[channel];
  rows.shift = norm.k1[channel];
  rows.slope = norm.k2[channel];
  rows.mean = norm.batch_mean[channel];
  return rows;
}

LoadRows Run::gradient_row(int tensor, const Plane& plane, Index columns) const {
  const Index offset = plane.number * columns * lanes;
  LoadRows row = gradient_rows(tensor, plane.block, plane.channel, offset);
  row.rows = row.height = 1;
  row.columns = row.width = columns;
  return row;
}

void Run::unpack(const float* rows, Index block, float* images, Index count, Index stride) const {
  for (Index lane = 0; lane < lanes_in(block); ++lane)
    for (Index i = 0; i < count; ++i) images[lane * stride + i] = rows[i * lanes + lane];
}

AccumulateGrad Run::input_grad(const Rows& rows, const View& view, Index channel,
                               Index offset) const {
  AccumulateGrad grad{rows, gradient(view.tensor, offset)};
  grad.half = bytes == 2;
  grad.add = view.grad.add;
  grad.finish = view.grad.finishes;
  grad.stream = streams(view.tensor);
  grad.activation = grad.finish ? storage.program.producer(view).activation : view.activation;
  grad.leak = view.leak;
  if (grad.activation != Activation::None) grad.value = value(view.tensor, offset);
  if (view.norm >= 0) {
    grad.scale = storage.norms[view.norm].scale[channel];
    grad.shift = storage.norms[view.norm].shift[channel];
  }
  for (const NormedTensor& normed : view.grad.normed) {
    grad.term[grad.terms] = value(normed.tensor, offset);
    grad.mean[grad.terms++] = storage.norms[normed.norm].batch_mean[channel];
  }
  return grad;
}

void LayerRun::order_back_weights(const Table<Group>& groups) const {
  std::int32_t* next = run.storage.back_next;
  for (Index b = 0; b < g.buckets(); ++b) next[b] = static_cast<std::int32_t>(l.back_begin[b]);
  const Quotient bucket(g.in_phase / lanes);
  for (const Group& group : groups) {
    std::int32_t* places = next + group.channel * g.phases();
    for (Index f = group.filter; f < group.filter + group.filters; ++f) {
      const Row r = row(f);
      const float* weights = l.weight.values + r.begin;
      const Offsets offsets = l.offsets.from(r.begin);
      if (offsets.wide)
        order_row(static_cast<const std::uint32_t*>(offsets.first), weights, r.count, bucket, places,
                  run.storage.back_weights);
      else
        order_row(static_cast<const std::uint16_t*>(offsets.first), weights, r.count, bucket, places,
                  run.storage.back_weights);
    }
  }
}

void Run::accumulate_plane(const View& view, const Plane& plane, float* rows) const {
  const Rows row = one_row(rows, tensor(view).shape.plane());
  grad_sums(plane.number) =
      kernels.accumulate_grad(input_grad(row, view, plane.channel, plane.offset));
}

void Run::collect_sums(const View& view, Index pieces) const {
  const Index channels = tensor(view).shape.channels;
  for (std::size_t k = 0; k < view.grad.normed.size(); ++k) {
    const Norm& norm = storage.norms[view.grad.normed[k].norm];
    for (Index c = 0; c < channels; ++c)
      for (Index piece = 0; piece < pieces; ++piece) {
        const GradSums& sums = grad_sums(piece * channels + c);
        norm.sum[c] += static_cast<double>(sums.sum);
        norm.product[c] += static_cast<double>(sums.product[k]);
      }
  }
}

}  // namespace fedtiny
