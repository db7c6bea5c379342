#include "program.h"

#include <algorithm>

namespace fedtiny {
namespace {

// What a node gives: one view, or the sum of two that is not written yet.
struct Value {
  std::array<View, 2> terms;
  int count = 1;
  bool relu = false;  // of the sum
  bool plain() const { return count == 1 && terms[0].norm < 0 && !terms[0].relu; }
};

class Compiler {
 public:
  explicit Compiler(const std::vector<Node>& nodes) : nodes_(nodes), values_(nodes.size()) {}

  Program run() {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) value(i) = compiled(i);
    const int last = static_cast<int>(nodes_.size()) - 1;
    write(last);
    program_.output = value(last).terms[0].tensor;
    return std::move(program_);
  }

 private:
  const Node& node(int i) const { return nodes_[static_cast<std::size_t>(i)]; }
  Value& value(int i) { return values_[static_cast<std::size_t>(i)]; }

  Value compiled(int i) {
    switch (node(i).kind) {
      case FEDTINY_INPUT: return whole(emit(OpKind::Input, i, {}, node(i).out));
      case FEDTINY_CONVOLUTION: return whole(emit(OpKind::Convolution, i, read(i), node(i).out));
      case FEDTINY_LINEAR: return whole(emit(OpKind::Linear, i, read(i), node(i).out));
      case FEDTINY_BATCH_NORM: return normed(i);
      case FEDTINY_RELU: return rectified(i);
      case FEDTINY_ADD: return added(i);
      case FEDTINY_FLATTEN: return flattened(i);
      default: return whole(emit(OpKind::Plane, i, read(i), node(i).out));
    }
  }

  static Value whole(int tensor) {
    Value v;
    v.terms[0].tensor = tensor;
    return v;
  }

  int emit(OpKind kind, int node, const View& in, const Shape& shape) {
    Op op{};
    op.kind = kind;
    op.node = node;
    op.in[0] = in;
    return append(op, shape);
  }

  int append(Op op, const Shape& shape) {
    const int place = static_cast<int>(program_.ops.size());
    Tensor tensor{};
    tensor.shape = shape;
    tensor.producer = place;
    tensor.norm = -1;
    tensor.gradient = true;
    op.out = static_cast<int>(program_.tensors.size());
    program_.ops.push_back(op);
    program_.tensors.push_back(tensor);
    return op.out;
  }

  // The view of what a node reads, written first if it cannot be read as it is.
  View read(int i) {
    const int source = node(i).first;
    const Value& v = value(source);
    if (v.count > 1 || !(v.plain() || only_lazy_readers(source))) write(source);
    return value(source).terms[0];
  }

  bool only_lazy_readers(int i) const {
    return std::all_of(node(i).consumers.begin(), node(i).consumers.end(), [this](int c) {
      const int kind = node(c).kind;
      if (kind == FEDTINY_FLATTEN) return only_linear_readers(c);
      return kind == FEDTINY_CONVOLUTION || kind == FEDTINY_LINEAR || kind == FEDTINY_MAX_POOL ||
             kind == FEDTINY_MEAN_POOL || kind == FEDTINY_ADAPTIVE_POOL || kind == FEDTINY_DROPOUT;
    });
  }

  bool only_linear_readers(int i) const {
    return !node(i).consumers.empty() &&
           std::all_of(node(i).consumers.begin(), node(i).consumers.end(),
                       [this](int c) { return node(c).kind == FEDTINY_LINEAR; });
  }

  void write(int i) {
    const Value v = value(i);
    if (v.plain()) return;
    Op op{};
    op.kind = OpKind::Combine;
    op.node = i;
    op.in = v.terms;
    op.terms = v.count;
    op.relu = v.count > 1 ? v.relu : v.terms[0].relu;
    op.in[0].relu = op.in[1].relu = false;
    value(i) = whole(append(op, node(i).out));
  }

  bool read_once(int i) const { return node(i).consumers.size() == 1; }

  Value normed(int i) {
    const int source = node(i).first;
    Value v = value(source);
    if (!v.plain() || !read_once(source) || !can_lead(v.terms[0].tensor))
      v = whole(emit(OpKind::Plane, i, read(i), node(i).in));
    program_.tensors[static_cast<std::size_t>(v.terms[0].tensor)].norm = i;
    v.terms[0].norm = i;
    return v;
  }

  // Whether batch norm can follow a tensor directly: its producer gives the sums.
  bool can_lead(int tensor) const {
    const Tensor& t = program_.tensor(tensor);
    return program_.op(t.producer).kind == OpKind::Convolution && t.norm < 0;
  }

  Value rectified(int i) {
    const int source = node(i).first;
    if (!value(source).plain() && !read_once(source)) write(source);
    Value v = value(source);
    (v.count > 1 ? v.relu : v.terms[0].relu) = true;
    return v;
  }

  Value added(int i) {
    Value sum;
    const std::array<int, 2> sources = {node(i).first, node(i).second};
    for (std::size_t t = 0; t < 2; ++t) {
      const Value& v = value(sources[t]);
      const bool fits = v.count == 1 && !v.terms[0].relu;
      if (!fits || (!v.plain() && !read_once(sources[t]))) write(sources[t]);
      sum.terms[t] = value(sources[t]).terms[0];
    }
    sum.count = 2;
    return sum;
  }

  Value flattened(int i) {
    if (only_linear_readers(i)) {
      const View view = read(i);
      Value v;
      v.terms[0] = view;
      return v;
    }
    return whole(emit(OpKind::Plane, i, read(i), node(i).out));
  }

  const std::vector<Node>& nodes_;
  std::vector<Value> values_;
  Program program_;
};

class Gradients {
 public:
  Gradients(Program& program, bool input_gradient) : p_(program) {
    p_.tensors[0].gradient = input_gradient;
  }

  void run() {
    collect_readers();
    for (int i = static_cast<int>(p_.ops.size()) - 1; i >= 0; --i) visit(i);
  }

 private:
  Tensor& tensor(int i) { return p_.tensors[static_cast<std::size_t>(i)]; }
  Op& op(int i) { return p_.ops[static_cast<std::size_t>(i)]; }

  void collect_readers() {
    for (int i = 0; i < static_cast<int>(p_.ops.size()); ++i)
      for (int t = 0; t < terms(i); ++t)
        tensor(op(i).in[static_cast<std::size_t>(t)].tensor).readers.push_back(i);
  }

  int terms(int i) { return op(i).kind == OpKind::Input ? 0 : op(i).terms; }

  void visit(int i) {
    Op& here = op(i);
    Tensor& out = tensor(here.out);
    if (out.gradient_buffer < 0 && out.gradient) out.gradient_buffer = p_.gradient_buffers++;
    for (int t = 0; t < terms(i); ++t) hand_on(i, static_cast<std::size_t>(t));
  }

  void hand_on(int i, std::size_t t) {
    Op& here = op(i);
    Tensor& to = tensor(here.in[t].tensor);
    Emission& emission = here.emission[t];
    emission.needed = to.gradient;
    if (!to.gradient) return;
    emission.add = to.gradient_buffer >= 0;
    if (here.kind == OpKind::Combine && may_share(i, t)) {
      to.gradient_buffer = tensor(here.out).gradient_buffer;
      here.shares_gradient[t] = true;
      return;
    }
    if (!emission.add) to.gradient_buffer = p_.gradient_buffers++;
    Op& producer = op(to.producer);
    const bool same_twice = here.terms == 2 && here.in[0].tensor == here.in[1].tensor;
    const bool seen_plain = here.in[t].norm < 0 && !here.in[t].relu;
    if (producer.kind == OpKind::Combine && seen_plain && to.readers.front() == i &&
        (!same_twice || t == 1)) {
      emission.finishes = true;
      producer.finished = true;
    }
  }

  // A Combine's terms have the gradient of its output. A term that went through batch norm has no
  // other reader. One that did not may share the buffer if what else is added to it comes after
  // the terms' producers have read theirs.
  bool may_share(int i, std::size_t t) {
    const Op& here = op(i);
    if (here.in[t].norm >= 0) return true;
    const Tensor& to = tensor(here.in[t].tensor);
    if (to.gradient_buffer >= 0 || here.in[0].tensor == here.in[1].tensor) return false;
    if (here.terms == 1) return to.readers.size() == 1;
    const View& other = here.in[1 - t];
    return other.norm >= 0 && tensor(other.tensor).producer > next_reader_before(to, i);
  }

  static int next_reader_before(const Tensor& t, int i) {
    int found = -1;
    for (const int r : t.readers)
      if (r < i) found = std::max(found, r);
    return found;
  }

  Program& p_;
};

// Convolution outputs that only a Combine reads can be computed again when it is their turn.
void drop_what_can_be_recomputed(Program& p) {
  for (Tensor& t : p.tensors) {
    if (t.norm < 0 || p.op(t.producer).kind != OpKind::Convolution) continue;
    if (t.readers.size() != 1 || p.op(t.readers[0]).kind != OpKind::Combine) continue;
    const Op& combine = p.op(t.readers[0]);
    const int at = combine.finished ? p.tensor(combine.out).readers.front() : t.readers[0];
    t.dropped = true;
    p.ops[static_cast<std::size_t>(at)].recomputes.push_back(t.producer);
  }
}

}  // namespace

Program program_of(const std::vector<Node>& nodes, bool recompute, bool input_gradient) {
  Program program = Compiler(nodes).run();
  Gradients(program, input_gradient).run();
  if (recompute) drop_what_can_be_recomputed(program);
  return program;
}

}  // namespace fedtiny
