int model_run_raw(const float *values, float *logits)
{
    START_PROFILE();
$clear    load_raw(values, &$image, $zero);
    return compute(logits);
}
