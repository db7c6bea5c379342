/* The filters of a group read the channels of that group only. */
static void convolve_groups(const Layer *layer, const Tensor *in, const Tensor *other,
                            const Tensor *out, int groups)
{
    const int filters = out->channels / groups, channels = in->channels / groups;
    Reader reader = read_from_start(layer);
    for (int filter = 0; filter < out->channels; ++filter) {
        list_weights(layer, &reader, in->plane);
        convolve_filter(layer, filter, in, filter / filters * channels, other, out);
    }
}
