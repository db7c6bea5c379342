/* A filter of one output: its kept weights are summed as they are read. */
static int32_t sum_kept(const Layer *layer, Reader *reader, const int8_t *pixels, int plane,
                        int32_t sum)
{
    const uint8_t *steps = reader->steps;
    const int8_t *weights = reader->weights;
    const int escape = reader->escape, inputs = layer->inputs;
    const unsigned taps = (unsigned)layer->taps;
    int place = reader->place;
    while (place < inputs) {
        const unsigned channel = (unsigned)place / taps;
        const int32_t offset = layer->offsets[(unsigned)place - channel * taps];
        int step = *steps++;
        if (step >= escape)
            step = escape + 256 * (step - escape) + *steps++;
        sum += *weights++ * pixels[offset + (int32_t)channel * plane];
        place += step + 1;
    }
    reader->steps = steps;
    reader->weights = weights;
    reader->place = place - inputs;
    return sum;
}

static void convolve(const Layer *layer, const Tensor *in, const Tensor *other, const Tensor *out)
{
    const int single = out->rows * out->columns == 1;
    Reader reader = read_from_start(layer);
    for (int filter = 0; filter < out->channels; ++filter) {
        if (single) {
            sums[0] = sum_kept(layer, &reader, row_of(in, 0, 0), in->plane, layer->biases[filter]);
            store_plane(layer, filter, in->pitch, other, out);
        } else {
            list_kept(layer, &reader, in->plane);
            convolve_filter(layer, filter, in, 0, other, out);
        }
    }
}
