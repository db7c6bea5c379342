/* Give the class of an image and, in `logits`, a number for each class. The image is MODEL_CHANNELS
   planes of MODEL_HEIGHT rows of MODEL_WIDTH bytes; it is normalized as in training. */
int model_run(const uint8_t *image, float *logits);

/* The same for an image that is normalized already. */
int model_run_values(const float *image, float *logits);
