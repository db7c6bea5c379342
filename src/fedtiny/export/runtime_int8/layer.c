/* The kept weights of a layer in the order of (filter, channel, tap), a tap being one place of the
   kernel. `steps` holds how many pruned weights lie before each kept one, and before the end: in one
   byte below `escape`, else in two. Without `steps` every weight is kept. Biases count with the zero
   point of what is read. */
typedef struct {
    int inputs, taps; /* of a filter, and of each of its channels */
    const int32_t *offsets; /* what the taps read for the first output, from a plane's first pixel */
    const uint8_t *steps;
    int escape;
    const int8_t *weights;
    const int32_t *biases;
    const int32_t *multipliers; /* of the filters' sums; none of logits */
    const float *scales; /* of logits */
    int64_t start; /* zero point and half a step, times 2^32 */
    int32_t other; /* what an added value is multiplied by, over 2^24 */
    Range range;
} Layer;

typedef struct {
    const uint8_t *steps;
    const int8_t *weights;
    int escape;
    int place; /* of the next kept weight, from the start of the filter that is read */
} Reader;

static void advance(Reader *reader)
{
    int step = 0;
    if (reader->steps) {
        step = *reader->steps++;
        if (step >= reader->escape)
            step = reader->escape + 256 * (step - reader->escape) + *reader->steps++;
    }
    reader->place += step + 1;
}

static Reader read_from_start(const Layer *layer)
{
    Reader reader = {layer->steps, layer->weights, layer->escape, -1};
    advance(&reader);
    return reader;
}
