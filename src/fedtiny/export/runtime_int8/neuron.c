/* The sum of one neuron; where all weights are kept and values lie side by side, without a list. */
static int32_t sum_of_neuron(const Layer *layer, int neuron, Reader *reader, const Tensor *in)
{
    const int8_t *values = row_of(in, 0, 0);
    int32_t sum = layer->biases[neuron];
    if (!layer->steps && in->plane == 1) {
        for (int i = 0; i < layer->inputs; ++i)
            sum += reader->weights[i] * values[i];
        reader->weights += layer->inputs;
        return sum;
    }
    for (; reader->place < layer->inputs; advance(reader))
        sum += *reader->weights++ * values[reader->place * in->plane];
    reader->place -= layer->inputs;
    return sum;
}
