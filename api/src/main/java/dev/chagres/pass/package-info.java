/**
 * What carries a micro-batch through a model: a {@link dev.chagres.pass.Pass} has what all {@linkplain dev.chagres.pass.Layer layers} share,
 * and a layer has explicit forward and backward calls. The layers of {@code dev.chagres.layer} use nothing of it that yours cannot use.
 */
@NullMarked
package dev.chagres.pass;

import org.jspecify.annotations.NullMarked;
