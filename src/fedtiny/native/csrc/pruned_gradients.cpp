// The whole gradient of some filters of a convolution.
#include "convolution_run.h"

namespace fedtiny {
namespace {

// Of filters of one group.
void add_gradients(const ConvolutionRun& c, Index thread, const Group& group, Index first,
                   Index filters, float* slab) {
  for (Index i = 0; i < c.pieces(); ++i) {
    const Piece piece(c.g, i);
    if (c.output_rows(piece) <= 0) continue;
    c.load_inputs(piece, group, true, c.inputs(thread));
    c.load_gradients(piece, first, filters, true, c.gradients(thread));
    c.add_whole_gradients(piece, group, filters, thread, slab);
  }
}

}  // namespace

FilterGradients convolution_filter_gradients(Run& run, const Op& op) {
  const ConvolutionRun c(run, op);
  return [=](Index thread, Index first, Index filters, float* slab) {
    for (const Group& group : c.groups) {
      const Index begin = std::max(first, group.filter);
      const Index end = std::min(first + filters, group.filter + group.filters);
      if (begin < end)
        add_gradients(c, thread, group, begin, end - begin,
                      slab + (begin - first) * c.node.filter_size());
    }
  };
}

}  // namespace fedtiny
