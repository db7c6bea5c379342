/* One kept weight of the filter at hand, and where it reads from a plane's first output; the last is
   followed by one at END. */
typedef struct {
    int32_t offset, weight;
} Kept;

#define END INT32_MIN

static Kept kept_weights[MOST_KEPT];

static void list_kept(const Layer *layer, Reader *reader, int plane)
{
    Reader at = *reader;
    Kept *kept = kept_weights;
    for (; at.place < layer->inputs; advance(&at), ++kept) {
        const unsigned channel = (unsigned)at.place / (unsigned)layer->taps;
        const unsigned tap = (unsigned)at.place - channel * (unsigned)layer->taps;
        kept->offset = layer->offsets[tap] + (int32_t)channel * plane;
        kept->weight = *at.weights++;
    }
    kept->offset = END;
    at.place -= layer->inputs;
    *reader = at;
}

#define DEFINE_GATHER(WIDTH)                                                                       \
    static void gather_##WIDTH(const int8_t *pixels, int32_t bias, int32_t *to)                    \
    {                                                                                              \
        int32_t sum[WIDTH];                                                                        \
        EACH(WIDTH, BEGIN)                                                                         \
        for (const Kept *kept = kept_weights; kept->offset != END; ++kept) {                       \
            const int8_t *from = pixels + kept->offset;                                            \
            const int32_t weight = kept->weight;                                                   \
            ADD_PIXELS(WIDTH)                                                                      \
        }                                                                                          \
        EACH(WIDTH, STORE)                                                                         \
    }

DEFINE_GATHER($wide)
DEFINE_GATHER($middle)
DEFINE_GATHER($narrow)

/* One filter's plane, of the kept weights that are listed and channels from `first` on. */
static void convolve_filter(const Layer *layer, int filter, const Tensor *in, int first,
                            const Tensor *other, const Tensor *out)
{
    const int length = (out->rows - 1) * in->pitch + out->columns;
    const int8_t *pixels = row_of(in, first, 0);
    const int32_t bias = layer->biases[filter];
    int done = 0;
    for (; length - done > $middle; done += $wide)
        gather_$wide(pixels + done, bias, sums + done);
    if (length - done > $narrow)
        gather_$middle(pixels + done, bias, sums + done);
    else if (length > done)
        gather_$narrow(pixels + done, bias, sums + done);
    store_plane(layer, filter, in->pitch, other, out);
}
