/* A layer that keeps all of its weights, of values that lie side by side: sums in lanes, which
   compilers turn into vector instructions. */
#define LANES 16

static void connect_all(const Layer *layer, const Tensor *in, const Tensor *out, Range range)
{
    const float *values = row_of(in, 0, 0);
    const Weight *weights = layer->weights;
    for (int neuron = 0; neuron < out->channels; ++neuron, weights += layer->inputs) {
        float lanes[LANES] = {0}, sum = 0.0f;
        int done = 0;
        for (; layer->inputs - done >= LANES; done += LANES)
            for (int i = 0; i < LANES; ++i)
                lanes[i] += (float)weights[done + i] * values[done + i];
        for (; done < layer->inputs; ++done)
            sum += (float)weights[done] * values[done];
        for (int i = 0; i < LANES; ++i)
            sum += lanes[i];
        sum = scale_of(layer, neuron) * sum + bias_of(layer, neuron);
        *row_of(out, neuron, 0) = limited(range, sum);
    }
}
