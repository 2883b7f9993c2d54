/** Commands that tell, before anything runs, what a model will take and how to train it. */
@NullMarked
package dev.chagres.trainer.plan;

import org.jspecify.annotations.NullMarked;
