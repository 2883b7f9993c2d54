/** Low-rank adapters of the products of layers: what {@link dev.chagres.parameter.LoraConfig} asks for. */
@NullMarked
package dev.chagres.adapter;

import org.jspecify.annotations.NullMarked;
