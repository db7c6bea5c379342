#include "program.h"

#include <algorithm>

#include "operations.h"

namespace fedtiny {
namespace {

// What a node returns: a view, or the sum of two that is not written yet; the activation is of the
// sum.
struct Value {
  std::vector<View> terms;
  Activation activation = Activation::None;
  float leak = 0;
  bool active() const { return activation != Activation::None; }
  bool plain() const { return terms.size() == 1 && terms[0].norm < 0 && !active(); }
  View view() const {
    View view = terms[0];
    view.activation = activation;
    view.leak = leak;
    return view;
  }
};

// Whether the output of an activation tells its derivative: a combination can do it then.
bool output_tells(Activation activation) {
  return activation == Activation::None || activation == Activation::Relu ||
         activation == Activation::Relu6;
}

class Compiler {
 public:
  explicit Compiler(const Nodes& nodes) : nodes_(nodes), values_(nodes.count()) {}

  Program run() {
    for (const Node& node : nodes_) values_[node.place] = compiled(node);
    write(nodes_.back());
    program_.output = values_.back().terms[0].tensor;
    return std::move(program_);
  }

 private:
  Value compiled(const Node& node) {
    switch (node.kind) {
      case FEDTINY_INPUT: return append({&operation_of(node), node.place, {}}, node.out);
      case FEDTINY_BATCH_NORM: return normed(node);
      case FEDTINY_ADD: return added(node);
      case FEDTINY_FLATTEN: return flattened(node);
      case FEDTINY_PERMUTE: write(nodes_[node.first]); break;  // its planes are not of one channel
      default: break;
    }
    if (operation_of(node).activation != Activation::None) return activated(node);
    return run(operation_of(node), node, node.out);
  }

  Value run(const Operation& operation, const Node& node, const Shape& shape) {
    Op op{&operation, node.place, {read(node.first)}};
    if (node.second >= 0) op.in.push_back(read(node.second));
    return append(op, shape);
  }

  Value append(Op op, const Shape& shape) {
    op.out = static_cast<int>(program_.tensors.size());
    program_.tensors.push_back({shape, static_cast<int>(program_.ops.size())});
    program_.ops.push_back(op);
    return {{View{op.out}}};
  }

  // The view of a node's value, written first if it cannot be read as it is.
  View read(int source) {
    const Value& v = values_[source];
    if (v.terms.size() > 1 || !(v.plain() || only_read_by_views(nodes_[source])))
      write(nodes_[source]);
    return values_[source].view();
  }

  template <class Condition>
  bool all_consumers(const Node& node, Condition condition) const {
    return std::all_of(node.consumers.begin(), node.consumers.end(),
                       [&](int c) { return condition(nodes_[c]); });
  }

  bool only_read_by_views(const Node& node) const {
    return all_consumers(node, [this](const Node& c) {
      return c.kind == FEDTINY_FLATTEN ? only_linear_readers(c)
                                       : operation_of(c).forward != nullptr;
    });
  }

  bool only_linear_readers(const Node& node) const {
    return !node.consumers.empty() &&
           all_consumers(node, [](const Node& c) { return c.kind == FEDTINY_LINEAR; });
  }

  void write(const Node& node) {
    const Value v = values_[node.place];
    if (v.plain()) return;
    values_[node.place] =
        output_tells(v.activation)
            ? append({&operations::combine, node.place, v.terms, -1, v.activation}, node.out)
            : append({&operations::copy, node.place, {v.view()}}, node.out);
  }

  bool read_once(int i) const { return nodes_[i].consumers.size() == 1; }

  Value normed(const Node& node) {
    Value v = values_[node.first];
    if (!v.plain() || !read_once(node.first) || !can_lead(program_.tensors[v.terms[0].tensor]))
      v = run(operations::copy, node, node.in);
    program_.tensors[v.terms[0].tensor].norm = node.place;
    v.terms[0].norm = node.place;
    return v;
  }

  // Whether batch norm can follow a tensor directly: its producer returns the sums.
  bool can_lead(const Tensor& tensor) const {
    return program_.ops[tensor.producer].operation->leads_norm && tensor.norm < 0;
  }

  Value activated(const Node& node) {
    const Activation own =
        node.approximate != 0 ? Activation::GeluByTanh : operation_of(node).activation;
    const Value& v = values_[node.first];
    const bool fits = !v.active() || (v.activation == own && own == Activation::Relu);
    const bool one = v.terms.size() == 1 || output_tells(own);
    if (!fits || !one || (!v.plain() && !read_once(node.first))) write(nodes_[node.first]);
    return {values_[node.first].terms, own, node.slope};
  }

  Value added(const Node& node) {
    Value sum;
    for (const int source : {node.first, node.second}) {
      const Value& v = values_[source];
      const bool fits = v.terms.size() == 1 && !v.active();
      if (!fits || (!v.plain() && !read_once(source))) write(nodes_[source]);
      sum.terms.push_back(values_[source].terms[0]);
    }
    return sum;
  }

  Value flattened(const Node& node) {
    if (!only_linear_readers(node)) return run(operations::copy, node, node.out);
    const View view = read(node.first);
    return {{view}, view.activation, view.leak};
  }

  const Nodes& nodes_;
  Table<Value> values_;
  Program program_;
};

bool same_twice(const Op& op) { return op.in.size() == 2 && op.in[0].tensor == op.in[1].tensor; }

int next_reader_before(const Tensor& t, int i) {
  int found = -1;
  for (const int r : t.readers)
    if (r < i) found = std::max(found, r);
  return found;
}

// A combination's terms have the gradient of its output. A term that went through batch norm has
// no other reader. One that did not may share the buffer if what else is added to it comes after
// the terms' producers have read theirs.
bool may_share(const Program& p, int i, const View& view) {
  const Op& here = p.ops[i];
  if (view.norm >= 0) return true;
  const Tensor& to = p.tensors[view.tensor];
  if (to.gradient_buffer >= 0 || same_twice(here)) return false;
  if (here.in.size() == 1) return to.readers.size() == 1;
  const View& other = &view == &here.in[0] ? here.in[1] : here.in[0];
  return other.norm >= 0 && p.tensors[other.tensor].producer > next_reader_before(to, i);
}

void plan_input_grad(Program& p, int i, View& view) {
  const Op& here = p.ops[i];
  Tensor& to = p.tensors[view.tensor];
  InputGrad& grad = view.grad;
  grad.needed = to.gradient;
  if (!to.gradient) return;
  grad.add = to.gradient_buffer >= 0;
  grad.shared = here.operation == &operations::combine && may_share(p, i, view);
  if (grad.shared) {
    to.gradient_buffer = p.tensors[here.out].gradient_buffer;
    return;
  }
  if (!grad.add) to.gradient_buffer = p.gradient_buffers++;
  Op& producer = p.ops[to.producer];
  const bool comes_again = same_twice(here) && &view == here.in.data();
  if (producer.operation == &operations::combine && view.plain() && to.readers.front() == i &&
      !comes_again)
    grad.finishes = producer.finished = true;
  if (grad.finishes) grad.normed = producer.normed_inputs();
  if (view.norm >= 0) grad.normed = {{view.tensor, view.norm}};
}

void plan_gradients(Program& p) {
  const int last = static_cast<int>(p.ops.size()) - 1;
  for (int i = 0; i <= last; ++i)
    for (const View& view : p.ops[i].in) p.tensors[view.tensor].readers.push_back(i);
  for (int i = last; i >= 0; --i) {
    Tensor& out = p.tensors[p.ops[i].out];
    if (out.gradient_buffer < 0 && out.gradient) out.gradient_buffer = p.gradient_buffers++;
    for (View& view : p.ops[i].in) plan_input_grad(p, i, view);
  }
}

// Outputs of convolutions that only a combination reads can be computed again at their turn.
void drop_what_can_be_recomputed(Program& p) {
  for (Tensor& t : p.tensors) {
    const Operation& producer = *p.ops[t.producer].operation;
    if (t.norm < 0 || !producer.leads_norm || !producer.rereads_input) continue;
    if (t.readers.size() != 1 || p.ops[t.readers[0]].operation != &operations::combine) continue;
    const Op& combination = p.ops[t.readers[0]];
    const int at = combination.finished ? p.tensors[combination.out].readers.front() : t.readers[0];
    t.dropped = true;
    p.ops[at].recomputes.push_back(t.producer);
  }
}

}  // namespace

std::vector<NormedTensor> Op::normed_inputs() const {
  std::vector<NormedTensor> found;
  for (const View& view : in)
    if (view.norm >= 0) found.push_back({view.tensor, view.norm});
  return found;
}

Program program_of(const Nodes& nodes, const fedtiny_options& options) {
  Program program = Compiler(nodes).run();
  program.tensors[0].gradient = options.input_gradient != 0;
  plan_gradients(program);
  if (options.recompute != 0) drop_what_can_be_recomputed(program);
  return program;
}

}  // namespace fedtiny
