const char *const model_class_names[MODEL_CLASSES] = {
$names
};

static int compute(float *logits)
{
    END_STEP(0);
$body
    return largest_of(logits);
}
