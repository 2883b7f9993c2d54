rootProject.name = "example"
