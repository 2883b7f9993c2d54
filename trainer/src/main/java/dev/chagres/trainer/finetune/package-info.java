/** The command that fine-tunes a model of transformers: its options, labelled data, metrics. */
@NullMarked
package dev.chagres.trainer.finetune;

import org.jspecify.annotations.NullMarked;
