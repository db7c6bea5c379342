// When each tensor is needed, and a place for each such that no two that are needed at once overlap.
#include <algorithm>
#include <numeric>

#include "plan.h"

namespace fedtiny {
namespace {

struct Span {
  Index* place;
  Index bytes, begin, end;  // both ends included
};

struct Clock {
  int ops;
  Index backward(int op) const { return 2 * ops - op; }
  Index loss() const { return ops; }
  Index end() const { return 2 * ops + 1; }
};

bool reads_values_again(const Op& op, const View& view, const std::vector<Node>& nodes) {
  if (op.kind == OpKind::Combine) return false;
  if (op.kind == OpKind::Convolution || op.kind == OpKind::Linear) return true;
  return view.relu || view.norm >= 0 ||
         nodes[static_cast<std::size_t>(op.node)].kind == FEDTINY_MAX_POOL;
}

Index last_forward(const Program& p, int tensor, const Clock& clock) {
  if (tensor == p.output) return clock.loss();
  const Tensor& t = p.tensor(tensor);
  return t.readers.empty() ? t.producer : t.readers.back();
}

Index last_use(const Program& p, int tensor, const Clock& clock, const std::vector<Node>& nodes) {
  const Tensor& t = p.tensor(tensor);
  const Op& producer = p.op(t.producer);
  Index last = last_forward(p, tensor, clock);
  if (t.norm >= 0 && !t.dropped) last = clock.backward(t.producer);
  if (producer.kind == OpKind::Combine && producer.relu)
    last = std::max(last, clock.backward(producer.finished ? t.readers.front() : t.producer));
  for (const int r : t.readers)
    for (const View& view : p.op(r).in)
      if (view.tensor == tensor && reads_values_again(p.op(r), view, nodes))
        last = std::max(last, clock.backward(r));
  return last;
}

Index packed(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.begin < b.begin;
  });
  Index top = 0;
  std::vector<const Span*> placed;
  for (const Span& span : spans) {
    Index at = 0;
    for (const Span* other : placed) {  // in order of place
      const bool apart = other->end < span.begin || span.end < other->begin;
      if (apart) continue;
      if (at + span.bytes <= *other->place) break;
      at = std::max(at, *other->place + other->bytes);
    }
    *span.place = at;
    top = std::max(top, at + span.bytes);
    const auto before = [](Index value, const Span* s) { return value < *s->place; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at, before), &span);
  }
  return top;
}

Index tensor_bytes(const Options& o, const Shape& shape, Index images) {
  const Index bytes = sized(o.blocks(images), shape.size(), o.lanes, o.value_bytes());
  return ceil_div(bytes, 64) * 64;
}

Index recomputed_at(const Program& p, int producer, const Clock& clock) {
  for (int i = 0; i < clock.ops; ++i)
    for (const int again : p.op(i).recomputes)
      if (again == producer) return clock.backward(i);
  return clock.end();
}

Placement empty_placement(const Program& p) {
  Placement placement;
  placement.values.assign(p.tensors.size(), NOWHERE);
  placement.again.assign(p.tensors.size(), NOWHERE);
  placement.gradients.assign(static_cast<std::size_t>(p.gradient_buffers), NOWHERE);
  return placement;
}

void add_gradients(const Program& p, const Options& o, Index images, const Clock& clock,
                   Placement& placement, std::vector<Span>& spans) {
  std::vector<Span> buffers(placement.gradients.size());
  for (std::size_t b = 0; b < buffers.size(); ++b)
    buffers[b] = {&placement.gradients[b], 0, clock.end(), 0};
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const Tensor& tensor = p.tensors[t];
    if (tensor.gradient_buffer < 0) continue;
    Span& span = buffers[static_cast<std::size_t>(tensor.gradient_buffer)];
    const bool output = static_cast<int>(t) == p.output;
    const Index first = output ? clock.loss() : clock.backward(tensor.readers.back());
    const Index last = t == 0 ? clock.end() : clock.backward(tensor.producer);
    span.bytes = tensor_bytes(o, tensor.shape, images);
    span.begin = std::min(span.begin, first);
    span.end = std::max(span.end, last);
  }
  spans.insert(spans.end(), buffers.begin(), buffers.end());
}

}  // namespace

Placement Plan::training(const Program& p, Index images) const {
  const Clock clock{static_cast<int>(p.ops.size())};
  Placement placement = empty_placement(p);
  std::vector<Span> spans;
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const Tensor& tensor = p.tensors[t];
    const Index bytes = tensor_bytes(options, tensor.shape, images);
    spans.push_back({&placement.values[t], bytes, tensor.producer,
                     last_use(p, static_cast<int>(t), clock, *nodes)});
    if (tensor.dropped)
      spans.push_back({&placement.again[t], bytes, recomputed_at(p, tensor.producer, clock),
                       clock.backward(tensor.producer)});
  }
  add_gradients(p, options, images, clock, placement, spans);
  placement.bytes = packed(std::move(spans));
  return placement;
}

Placement Plan::forward(const Program& p, Index images) const {
  const Clock clock{static_cast<int>(p.ops.size())};
  Placement placement = empty_placement(p);
  std::vector<Span> spans;
  for (std::size_t t = 0; t < p.tensors.size(); ++t)
    spans.push_back({&placement.values[t], tensor_bytes(options, p.tensors[t].shape, images),
                     p.tensors[t].producer, last_forward(p, static_cast<int>(t), clock)});
  placement.bytes = packed(std::move(spans));
  return placement;
}

}  // namespace fedtiny
