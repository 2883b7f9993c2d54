/** The frame of a transformer: what comes before a head, and a model of it and a head, which trainers and pipelines take. */
@NullMarked
package dev.chagres.models.transformer;

import org.jspecify.annotations.NullMarked;
