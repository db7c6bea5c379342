int model_run(const uint8_t *image, float *logits)
{
$clear    load_pixels(image, &$image);
    return compute(logits);
}
