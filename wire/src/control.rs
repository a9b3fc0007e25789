// Filled by the sandbox side: the frames between host and init.
