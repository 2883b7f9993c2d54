/**
 * Models in and out of the folders that Hugging Face's transformers reads and writes: {@code config.json}, safetensors files, tokenizer.
 *
 * <p>{@link dev.chagres.models.huggingface.Models} opens a folder by the architecture that it names, {@link
 * dev.chagres.models.huggingface.Esm2Checkpoint} opens and saves ESM-2.
 */
@NullMarked
package dev.chagres.models.huggingface;

import org.jspecify.annotations.NullMarked;
