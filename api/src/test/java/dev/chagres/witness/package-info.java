/**
 * What the layers compute, once more in double precision and in the plainest way: the witness against which every provider is
 * tested. Matrix products and special functions are those of Apache Commons Math; gradients are themselves tested against
 * finite differences by {@link dev.chagres.witness.WitnessTest}.
 */
package dev.chagres.witness;
