"""The project's settings; what concerns work stealing is at the end."""

from __future__ import annotations

import secrets

SECRET_KEY = secrets.token_hex()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True

INSTALLED_APPS = ["workstealing.integrations.django.WorkStealingConfig"]
MIDDLEWARE = [
    # First, so that it sees the responses as they go out.
    "workstealing.integrations.django.WorkStealingMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
]
WORKSTEALING = {
    "RECRUITER": "shop.maintenance:recruiter",
    "WHEN": "shop.maintenance:was_fast",
}
