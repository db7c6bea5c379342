const char *const model_class_names[MODEL_CLASSES] = {
$names
};

static int compute(float *logits)
{
    END_STEP(0);
$body
    return largest_of(logits);
}

int model_run(const uint8_t *image, float *logits)
{
    START_PROFILE();
$clear    load_pixels(image, &$image);
    return compute(logits);
}

int model_run_values(const float *image, float *logits)
{
    START_PROFILE();
$clear    load_values(image, &$image);
    return compute(logits);
}
