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

#ifdef GATHER_BY_DSP
/* Whether the taps are three rows of three neighbors. */
static int is_square(const Layer *layer, int pitch)
{
    const int32_t *at = layer->offsets;
    return layer->taps == 9 && at[2] - at[0] == 2 && at[8] - at[0] == 2 * pitch + 2 &&
           at[3] - at[0] == pitch;
}
#endif

/* Sums of a plane's first `length` neighbors, by the core's instructions where there are some. */
static void gather_widely(const Layer *layer, const int8_t *weights, const Tensor *in, int32_t bias,
                          int length)
{
    const int8_t *pixels = row_of(in, 0, 0);
#ifdef GATHER_BY_DSP
    if (is_square(layer, in->pitch)) {
        const Kernels kernels = {bias, in->pitch, in->plane - 2 * in->pitch, layer->inputs / 9};
        gather_kernels_by_dsp(pixels + layer->offsets[0], weights, sums, &kernels, length);
        return;
    }
#endif
    gather_all_$wide(layer, weights, pixels, in->plane, bias, sums, length);
}

static void convolve_all(const Layer *layer, const Tensor *in, const Tensor *other,
                         const Tensor *out)
{
    const int length = (out->rows - 1) * in->pitch + out->columns, plane = in->plane;
    const int wide = widely(length), left = length - wide;
    const int8_t *weights = layer->weights, *pixels = row_of(in, 0, 0) + wide;
    for (int filter = 0; filter < out->channels; ++filter, weights += layer->inputs) {
        const int32_t bias = layer->biases[filter];
        if (wide > 0)
            gather_widely(layer, weights, in, bias, wide);
        if (left > $narrow)
            gather_all_$middle(layer, weights, pixels, plane, bias, sums + wide, left);
        else if (left > 0)
            gather_all_$narrow(layer, weights, pixels, plane, bias, sums + wide, left);
        store_plane(layer, filter, in->pitch, other, out);
    }
}
