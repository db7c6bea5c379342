int model_run(const uint8_t *image, float *logits)
{
    START_PROFILE();
$clear    load_pixels(image, &$image);
    return compute(logits);
}
