package dev.chagres.pass;

/** What errors and reports call by a name, such as {@code layers.3}. */
public interface Named {
    /** Returns the name in errors and reports. */
    String name();
}
