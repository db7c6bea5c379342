/* A layer that keeps all of its weights: no list of them is made. */
#define DEFINE_GATHER_ALL(WIDTH)                                                                   \
    KERNEL gather_all_##WIDTH(const Layer *layer, const int8_t *weights, const int8_t *start,      \
                              int plane, int32_t bias, int32_t *to, int length)                    \
    {                                                                                              \
        for (; length > 0; length -= WIDTH, start += WIDTH, to += WIDTH) {                         \
            const int8_t *pixels = start, *at = weights;                                           \
            int32_t sum[WIDTH];                                                                    \
            EACH(WIDTH, BEGIN)                                                                     \
            for (int first = 0; first < layer->inputs; first += layer->taps, pixels += plane)      \
                for (int tap = 0; tap < layer->taps; ++tap) {                                      \
                    const int8_t *from = pixels + layer->offsets[tap];                             \
                    const int32_t weight = *at++;                                                  \
                    ADD_PIXELS(WIDTH)                                                              \
                }                                                                                  \
            EACH(WIDTH, STORE)                                                                     \
        }                                                                                          \
    }

DEFINE_GATHER_ALL($wide)
DEFINE_GATHER_ALL($middle)
DEFINE_GATHER_ALL($narrow)

static void convolve_all(const Layer *layer, const Tensor *in, const Tensor *other,
                         const Tensor *out)
{
    const int length = (out->rows - 1) * in->pitch + out->columns, plane = in->plane;
    const int wide = widely(length);
    const int8_t *weights = layer->weights, *pixels = row_of(in, 0, 0);
    for (int filter = 0; filter < out->channels; ++filter, weights += layer->inputs) {
        const int32_t bias = layer->biases[filter];
        if (wide > 0)
            gather_all_$wide(layer, weights, pixels, plane, bias, sums, wide);
        if (length - wide > $narrow)
            gather_all_$middle(layer, weights, pixels + wide, plane, bias, sums + wide,
                               length - wide);
        else if (length > wide)
            gather_all_$narrow(layer, weights, pixels + wide, plane, bias, sums + wide,
                               length - wide);
        store_plane(layer, filter, in->pitch, other, out);
    }
}
