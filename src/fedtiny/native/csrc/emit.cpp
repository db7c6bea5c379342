// Where gradients go: into a tensor's buffer, through ReLU, with the sums for batch norm.
#include "network.h"

namespace fedtiny {

char* Network::gradient(int tensor, Index offset) const {
  const auto buffer = static_cast<std::size_t>(program_.tensor(tensor).gradient_buffer);
  return at<char>(plan_.activations + placement_.gradients[buffer]) + offset * bytes_;
}

LoadGradient Network::gradient_rows(int tensor, Index block, Index channel, Index offset) const {
  const Tensor& t = program_.tensor(tensor);
  LoadGradient rows{};
  rows.gradient = gradient(tensor, offset);
  rows.value = value(tensor, offset);
  rows.height = rows.rows = t.shape.height;
  rows.width = rows.columns = t.shape.width;
  rows.row_stride = t.shape.width * lanes_;
  rows.lanes = lanes_in(block);
  rows.half = bytes_ == 2;
  rows.norm = t.norm >= 0;
  if (rows.norm) {
    rows.a = norm(t.norm).a[channel];
    rows.k1 = norm(t.norm).k1[channel];
    rows.k2 = norm(t.norm).k2[channel];
    rows.mean = norm(t.norm).batch_mean[channel];
  }
  return rows;
}

// Rows are to be filled in. `offset` is where they begin in the tensor, in values.
EmitRows Network::emission_of(int i, std::size_t term, Index channel, Index offset) const {
  const Op& op = program_.op(i);
  const View& view = op.in[term];
  EmitRows e{};
  e.gradient = gradient(view.tensor, offset);
  e.half = bytes_ == 2;
  e.add = op.emission[term].add;
  e.finish = op.emission[term].finishes;
  e.stream = streams(view.tensor);
  e.mask_scale = 1.0F;
  const auto add_term = [&](const View& v) {
    e.term[e.terms] = value(v.tensor, offset);
    e.mean[e.terms++] = norm(v.norm).batch_mean[channel];
  };
  if (e.finish) {
    const Op& producer = program_.op(program_.tensor(view.tensor).producer);
    if (producer.relu) e.mask = value(view.tensor, offset);
    for (int t = 0; t < producer.terms; ++t)
      if (producer.in[static_cast<std::size_t>(t)].norm >= 0)
        add_term(producer.in[static_cast<std::size_t>(t)]);
    return e;
  }
  if (view.relu) e.mask = value(view.tensor, offset);
  if (view.norm >= 0) {
    e.mask_scale = norm(view.norm).scale[channel];
    e.mask_shift = norm(view.norm).shift[channel];
    add_term(view);
  }
  return e;
}

void Network::keep_sums(const EmitRows& rows, Index piece, Index channel, Index channels) {
  float* sums = at<float>(plan_.sums) + (piece * channels + channel) * 3;
  sums[0] = rows.sum;
  sums[1] = rows.product[0];
  sums[2] = rows.product[1];
}

// Adding zeros to a gradient that nothing finishes yet changes nothing.
bool Network::writes_nothing(int i, std::size_t term) const {
  const Emission& emission = program_.op(i).emission[term];
  return emission.add && !emission.finishes;
}

void Network::collect_sums(int i, std::size_t term, Index pieces) {
  const Op& op = program_.op(i);
  std::array<int, 2> norms = {-1, -1};
  std::size_t count = 0;
  if (op.emission[term].finishes) {
    const Op& producer = program_.op(program_.tensor(op.in[term].tensor).producer);
    for (int t = 0; t < producer.terms; ++t)
      if (producer.in[static_cast<std::size_t>(t)].norm >= 0)
        norms[count++] = producer.in[static_cast<std::size_t>(t)].norm;
  } else if (op.in[term].norm >= 0) {
    norms[count++] = op.in[term].norm;
  }
  add_sums(norms, count, program_.tensor(op.in[term].tensor).shape.channels, pieces);
}

void Network::add_sums(const std::array<int, 2>& norms, std::size_t count, Index channels,
                       Index pieces) {
  for (std::size_t k = 0; k < count; ++k) {
    const Norm& n = norm(norms[k]);
    for (Index c = 0; c < channels; ++c)
      for (Index piece = 0; piece < pieces; ++piece) {
        const float* from = at<float>(plan_.sums) + (piece * channels + c) * 3;
        n.sum[c] += static_cast<double>(from[0]);
        n.product[c] += static_cast<double>(from[1 + k]);
      }
  }
}

}  // namespace fedtiny
