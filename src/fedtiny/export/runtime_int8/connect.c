static void connect(const Layer *layer, const Tensor *in, const Tensor *out)
{
    Reader reader = read_from_start(layer);
    for (int neuron = 0; neuron < out->channels; ++neuron) {
        const int64_t sum = sum_of_neuron(layer, neuron, &reader, in);
        *row_of(out, neuron, 0) =
            limited(layer->range, scaled(sum * layer->multipliers[neuron] + layer->start));
    }
}
