package dev.chagres.te;

/**
 * What the checks of an activation's arguments ask: its name, its formula, and whether it halves the columns.
 *
 * <p>Threading: immutable.
 */
interface ActivationForm {
    String name();

    String formula();

    boolean isGated();
}
