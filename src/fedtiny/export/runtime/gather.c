/* One kept weight of the filter at hand, and where it reads from a plane's first output; the last is
   followed by one at END. */
typedef struct {
    int32_t offset;
    float weight;
} Kept;

#define END INT32_MIN

static Kept kept_weights[MOST_KEPT];
static float sums[MOST_SUMS];

static void list_kept(const Layer *layer, Reader *reader, int plane)
{
    Reader at = *reader;
    Kept *kept = kept_weights;
    for (; at.place < layer->inputs; advance(&at), ++kept) {
        const unsigned channel = (unsigned)at.place / (unsigned)layer->taps;
        const unsigned tap = (unsigned)at.place - channel * (unsigned)layer->taps;
        kept->offset = layer->offsets[tap] + (int32_t)channel * plane;
        kept->weight = (float)*at.weights++;
    }
    kept->offset = END;
    at.place -= layer->inputs;
    *reader = at;
}

/* WIDTH neighboring sums at a time, which stay in registers. */
#define DEFINE_GATHER(WIDTH)                                                                       \
    static void gather_##WIDTH(const float *pixels, float *to)                                     \
    {                                                                                              \
        float sum[WIDTH] = {0};                                                                    \
        for (const Kept *kept = kept_weights; kept->offset != END; ++kept) {                       \
            const float *from = pixels + kept->offset;                                             \
            for (int i = 0; i < WIDTH; ++i)                                                        \
                sum[i] += kept->weight * from[i];                                                  \
        }                                                                                          \
        memcpy(to, sum, sizeof sum);                                                               \
    }

DEFINE_GATHER(16)
DEFINE_GATHER(32)
DEFINE_GATHER(64)

/* The sums of one filter for all pixels, rows and the gaps between them in one go. */
static void gather(const float *pixels, int length)
{
    int done = 0;
    for (; length - done > 32; done += 64)
        gather_64(pixels + done, sums + done);
    if (length - done > 16)
        gather_32(pixels + done, sums + done);
    else if (length > done)
        gather_16(pixels + done, sums + done);
}

static void add_rows(const Tensor *other, int filter, int pitch)
{
    for (int row = 0; row < other->rows; ++row) {
        const float *from = row_of(other, filter, row);
        for (int column = 0; column < other->columns; ++column)
            sums[row * pitch + column] += from[column];
    }
}

static void store_rows(const Tensor *out, int filter, int pitch, Range range)
{
    for (int row = 0; row < out->rows; ++row) {
        float *to = row_of(out, filter, row);
        for (int column = 0; column < out->columns; ++column)
            to[column] = limited(range, sums[row * pitch + column]);
    }
}

/* One filter's plane, of the kept weights that are listed and channels from `first` on; `other`, if
   there is one, is added and may lie where `out` does. */
static void convolve_filter(const Layer *layer, int filter, const Tensor *in, int first,
                            const Tensor *other, const Tensor *out, Range range)
{
    const int length = (out->rows - 1) * in->pitch + out->columns;
    const float scale = scale_of(layer, filter), bias = bias_of(layer, filter);
    gather(row_of(in, first, 0), length);
    for (int i = 0; i < length; ++i)
        sums[i] = scale * sums[i] + bias;
    if (other)
        add_rows(other, filter, in->pitch);
    store_rows(out, filter, in->pitch, range);
}
