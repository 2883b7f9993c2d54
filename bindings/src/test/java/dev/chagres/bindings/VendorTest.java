package dev.chagres.bindings;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * A test against NVIDIA's pinned libraries, on a machine without a GPU. It is skipped where they were not fetched, with that
 * reason; with {@code CI=true} or {@code -Dchagres.vendor.required=true} it fails instead.
 */
@Target(ElementType.TYPE)
@Retention(RetentionPolicy.RUNTIME)
@Tag("vendor")
@ExtendWith(VendorFolder.class)
@interface VendorTest {}
