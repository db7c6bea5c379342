// When each tensor is needed, and a place for each such that no two that are needed at once
// overlap.
#include <algorithm>

#include "operations.h"
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

bool reads_values_again(const Op& op, const View& view) {
  return op.operation->rereads_input || (op.operation != &operations::combine && !view.plain());
}

Index last_forward(const Program& p, int tensor, const Clock& clock) {
  if (tensor == p.output) return clock.loss();
  const Tensor& t = p.tensors[tensor];
  return t.readers.empty() ? t.producer : t.readers.back();
}

Index last_use(const Program& p, int tensor, const Clock& clock) {
  const Tensor& t = p.tensors[tensor];
  const Op& producer = p.ops[t.producer];
  Index last = last_forward(p, tensor, clock);
  if (t.norm >= 0 && !t.dropped) last = clock.backward(t.producer);
  if (producer.activation != Activation::None)
    last = std::max(last, clock.backward(producer.finished ? t.readers.front() : t.producer));
  for (const int r : t.readers)
    for (const View& view : p.ops[r].in)
      if (view.tensor == tensor && reads_values_again(p.ops[r], view))
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
  return ceil_div(bytes, ALIGNMENT) * ALIGNMENT;
}

Index recomputed_at(const Program& p, int producer, const Clock& clock) {
  for (int i = 0; i < clock.ops; ++i)
    for (const int again : p.ops[i].recomputes)
      if (again == producer) return clock.backward(i);
  return clock.end();
}

void add_gradients(const Program& p, const Options& o, Index images, const Clock& clock,
                   Placement& placement, std::vector<Span>& spans) {
  placement.gradients = Table<Index>(p.gradient_buffers);
  Table<Span> buffers;
  for (Index& place : placement.gradients) buffers.push_back({&place, 0, clock.end(), 0});
  for (int t = 0; t < p.tensors.count(); ++t) {
    const Tensor& tensor = p.tensors[t];
    if (tensor.gradient_buffer < 0) continue;
    Span& span = buffers[tensor.gradient_buffer];
    const Index first = t == p.output ? clock.loss() : clock.backward(tensor.readers.back());
    const Index last = t == 0 ? clock.end() : clock.backward(tensor.producer);
    span.bytes = tensor_bytes(o, tensor.shape, images);
    span.begin = std::min(span.begin, first);
    span.end = std::max(span.end, last);
  }
  spans.insert(spans.end(), buffers.begin(), buffers.end());
}

}  // namespace

Placement placement_of(const Program& p, const Options& o, Index images, bool training) {
  const Clock clock{static_cast<int>(p.ops.size())};
  Placement placement;
  placement.values = placement.again = Table<Index>(p.tensors.count());
  std::vector<Span> spans;
  for (int t = 0; t < p.tensors.count(); ++t) {
    const Tensor& tensor = p.tensors[t];
    const Index bytes = tensor_bytes(o, tensor.shape, images);
    const Index end = training ? last_use(p, t, clock) : last_forward(p, t, clock);
    spans.push_back({&placement.values[t], bytes, tensor.producer, end});
    if (training && tensor.dropped)
      spans.push_back({&placement.again[t], bytes, recomputed_at(p, tensor.producer, clock),
                       clock.backward(tensor.producer)});
  }
  if (training) add_gradients(p, o, images, clock, placement, spans);
  placement.bytes = packed(std::move(spans));
  return placement;
}

Index activation_bytes(const Program& program, const Options& options) {
  return std::max(placement_of(program, options, options.batch, true).bytes,
                  placement_of(program, options, options.forward_batch, false).bytes);
}

}  // namespace fedtiny
