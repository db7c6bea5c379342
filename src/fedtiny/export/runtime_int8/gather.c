/* One kept weight of the filter at hand, and where it reads from a plane's first output; the last is
   followed by one at END. */
typedef struct {
    int32_t offset, weight;
} Kept;

#define END INT32_MIN

static Kept kept_weights[MOST_KEPT];

static void list_kept(const Layer *layer, Reader *reader, int plane)
{
    const uint8_t *steps = reader->steps;
    const int8_t *weights = reader->weights;
    const int32_t *offsets = layer->offsets;
    const int escape = reader->escape, inputs = layer->inputs;
    const unsigned taps = (unsigned)layer->taps;
    int place = reader->place;
    Kept *kept = kept_weights;
    for (; place < inputs; ++kept) {
        const unsigned channel = (unsigned)place / taps;
        int step = *steps++;
        if (step >= escape)
            step = escape + 256 * (step - escape) + *steps++;
        kept->offset = offsets[(unsigned)place - channel * taps] + (int32_t)channel * plane;
        kept->weight = *weights++;
        place += step + 1;
    }
    kept->offset = END;
    reader->steps = steps;
    reader->weights = weights;
    reader->place = place - inputs;
}

/* Sums of `length` neighbours, rounded up to WIDTH, which are worked out together. */
#define DEFINE_GATHER(WIDTH)                                                                       \
    KERNEL gather_##WIDTH(const int8_t *pixels, int32_t bias, int32_t *to, int length)             \
    {                                                                                              \
        for (; length > 0; length -= WIDTH, pixels += WIDTH, to += WIDTH) {                        \
            int32_t sum[WIDTH];                                                                    \
            EACH(WIDTH, BEGIN)                                                                     \
            for (const Kept *kept = kept_weights; kept->offset != END; ++kept) {                   \
                const int8_t *from = pixels + kept->offset;                                        \
                const int32_t weight = kept->weight;                                               \
                ADD_PIXELS(WIDTH)                                                                  \
            }                                                                                      \
            EACH(WIDTH, STORE)                                                                     \
        }                                                                                          \
    }

#ifdef GATHER_BY_DSP
#define gather_$wide(PIXELS, BIAS, TO, LENGTH)                                                        \
    gather_by_dsp(PIXELS, BIAS, TO, kept_weights, LENGTH)
#else
DEFINE_GATHER($wide)
#endif
DEFINE_GATHER($middle)
DEFINE_GATHER($narrow)

/* One filter's plane, of the kept weights that are listed and channels from `first` on. */
static void convolve_filter(const Layer *layer, int filter, const Tensor *in, int first,
                            const Tensor *other, const Tensor *out)
{
    const int length = (out->rows - 1) * in->pitch + out->columns;
    const int8_t *pixels = row_of(in, first, 0);
    const int32_t bias = layer->biases[filter];
    const int wide = widely(length);
    if (wide > 0)
        gather_$wide(pixels, bias, sums, wide);
    if (length - wide > $narrow)
        gather_$middle(pixels + wide, bias, sums + wide, length - wide);
    else if (length > wide)
        gather_$narrow(pixels + wide, bias, sums + wide, length - wide);
    store_plane(layer, filter, in->pitch, other, out);
}
